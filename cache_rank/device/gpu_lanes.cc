#include "cache_rank/device/gpu_lanes.h"

#include "absl/strings/str_format.h"
#include "cache_rank/device/gpu_lane.h"
#include "common/base/status.h"
#include "common/model/synthetic_models.h"

namespace winnow {
namespace {

// Sequences that decode, and as many whose prompts are under way.
constexpr uint32_t kMirrorsPerSeat = 2;
constexpr uint64_t kSyntheticSeed = 1;  // that of inference ranks

double InMib(size_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

absl::Status CheckOffer(const LaneOffer& offer) {
  WINNOW_RETURN_IF_ERROR(CheckDeviceSpec(offer.spec));
  // Scorers of pages have been served by frames alone so far.
  if (offer.spec.scorer != Scorer::kToken) return absl::FailedPreconditionError("a lane serves the scorer token");
  if (offer.max_rows < 1 || offer.max_rows > 64 || offer.hidden_size < 1) {
    return absl::InvalidArgumentError("the offered lane has an impossible shape");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<GpuLanes>> GpuLanes::Create(const cuda::CudaTable* table, int ordinal,
                                                           const Options& options) {
  std::unique_ptr<GpuLanes> lanes(new GpuLanes(table, options));
  WINNOW_ASSIGN_OR_RETURN(lanes->device_, table->open_device(ordinal));
  if (!options.model.empty()) WINNOW_RETURN_IF_ERROR(lanes->LoadProjections());
  return lanes;
}

absl::Status GpuLanes::LoadProjections() {
  const DeviceWeightOptions weights{.dtype = options_.compute, .shard = {}, .parts = WeightParts::kQueryProjections};
  if (IsSyntheticModel(options_.model)) {
    WINNOW_ASSIGN_OR_RETURN(const ModelConfig config, SyntheticModelConfig(options_.model));
    WINNOW_ASSIGN_OR_RETURN(projections_, DeviceWeights::Synthesize(*table_, *device_, config, kSyntheticSeed,
                                                                    /*query_bias=*/false, weights));
    return absl::OkStatus();
  }
  WINNOW_ASSIGN_OR_RETURN(const std::shared_ptr<const Checkpoint> checkpoint, Checkpoint::Open(options_.model));
  WINNOW_ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(options_.model));
  WINNOW_ASSIGN_OR_RETURN(projections_, DeviceWeights::Load(*table_, *device_, *checkpoint, config, weights));
  return absl::OkStatus();
}

absl::Status GpuLanes::MakeStore(const LaneOffer& offer, const ServedShape& shape) {
  if (shape.layout.dtype != Dtype::kBf16) return absl::FailedPreconditionError("a lane carries rows of bf16 alone");
  const DeviceKvShape wanted = DeviceKvShapeFor(
      offer.spec, shape.layout, static_cast<uint32_t>(offer.max_rows) * kMirrorsPerSeat, offer.max_positions, 0);
  WINNOW_ASSIGN_OR_RETURN(const std::unique_ptr<cuda::Device> now, table_->open_device(device_->ordinal()));
  const bool is_given = options_.memory_bytes > 0;
  const size_t memory = is_given ? options_.memory_bytes : now->info().free_bytes / 10 * 9;
  DeviceKvShape tables = wanted;
  tables.num_blocks = 0;
  const size_t lane_bytes =
      GpuLane::DeviceBytes(table_, tables, offer.spec, ModelOf(shape), GpuLane::ExchangeOf(offer, shape.layout));
  const size_t projections = is_given && projections_ != nullptr ? projections_->bytes() : 0;
  const size_t beside = kRoomForLanes * lane_bytes + LaneStore::StagingBytes(shape.layout) + projections;
  const absl::Status made = [&]() -> absl::Status {
    if (memory <= beside) return absl::ResourceExhaustedError("nothing is left for sequences");
    WINNOW_ASSIGN_OR_RETURN(store_, LaneStore::Create(table_, device_.get(), wanted, offer.spec, memory - beside));
    return absl::OkStatus();
  }();
  if (made.code() != absl::StatusCode::kResourceExhausted) return made;
  return absl::ResourceExhaustedError(absl::StrFormat(
      "of %.1f MiB of the cache rank's GPU%s, %d lanes of %d seats take %.1f MiB each, query projections %.1f MiB and "
      "rows on their way %.1f MiB: %s",
      InMib(memory), is_given ? " (three quarters of --device-memory)" : "", kRoomForLanes, offer.max_rows,
      InMib(lane_bytes), InMib(projections), InMib(LaneStore::StagingBytes(shape.layout)), made.message()));
}

DeviceSelection::Model GpuLanes::ModelOf(const ServedShape& shape) const {
  return {.rope = shape.model.rope, .attention_scale = shape.model.attention_scale, .queries = projections_.get()};
}

absl::StatusOr<std::unique_ptr<DeviceLane>> GpuLanes::Open(const LaneOffer& offer, const ServedShape& shape) {
  WINNOW_RETURN_IF_ERROR(CheckOffer(offer));
  if (offer.spec.predictor == Predictor::kDepth) {
    if (projections_ == nullptr) {
      return absl::FailedPreconditionError("predictor depth on a lane needs --model on the cache rank");
    }
    if (projections_->config().hidden_size != offer.hidden_size) {
      return absl::FailedPreconditionError("the cache rank's --model is another one");
    }
    if (!offer.synthetic_model.empty() && offer.synthetic_model != options_.model) {
      return absl::FailedPreconditionError("the cache rank's --model is another one");
    }
  }
  WINNOW_RETURN_IF_ERROR(cuda::PeerLink::CheckReachable(*device_, offer.address));
  if (store_ == nullptr) WINNOW_RETURN_IF_ERROR(MakeStore(offer, shape));
  if (!(store_->spec() == offer.spec) || store_->kv().shape().max_positions < offer.max_positions) {
    return absl::FailedPreconditionError("the cache rank has lanes for another selection or shorter sequences");
  }
  WINNOW_ASSIGN_OR_RETURN(std::unique_ptr<DeviceLane> lane,
                          GpuLane::Create(table_, device_.get(), store_.get(), ModelOf(shape), offer));
  return lane;
}

void GpuLanes::OnRows(const CachedSequence& sequence, int layer, uint32_t first, uint32_t count,
                      const std::byte* rows) {
  if (store_ != nullptr) store_->OnRows(sequence, layer, first, count, rows);
}

void GpuLanes::Truncate(uint64_t sequence_id, uint32_t position) {
  if (store_ != nullptr) store_->Truncate(sequence_id, position);
}

void GpuLanes::Forget(uint64_t sequence_id) {
  if (store_ != nullptr) store_->Forget(sequence_id);
}

void GpuLanes::Retain(const std::function<bool(uint64_t)>& stays) {
  if (store_ != nullptr) store_->Retain(stays);
}

}  // namespace winnow
