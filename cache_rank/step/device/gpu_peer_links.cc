#include "cache_rank/step/device/gpu_peer_links.h"

#include "absl/strings/str_format.h"
#include "cache_rank/step/device/gpu_peer_link.h"
#include "common/base/status.h"
#include "common/model/synthetic_models.h"
#include "common/selection/shard_spec.h"
#include "common/selection/spec_traits.h"

namespace winnow {
namespace {

// Sequences that decode, and as many whose prompts are under way.
constexpr uint32_t kCopiesPerBatchRow = 2;
constexpr uint64_t kSyntheticSeed = 1;  // that of inference ranks
// Small arrays of a store that BytesOf leaves out, and where arrays begin at multiples of 256 bytes.
constexpr size_t kUncountedBytes = size_t{32} << 10;

double InMib(size_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

absl::Status CheckOffer(const PeerOffer& offer) {
  WINNOW_RETURN_IF_ERROR(CheckDeviceSpec(offer.spec));
  // Scorers of whole pages have been served by frames alone so far.
  if (SelectsWholePages(offer.spec)) {
    return absl::FailedPreconditionError("a peer link serves the scorers token and two-stage");
  }
  if (offer.max_rows < 1 || offer.max_rows > 64 || offer.hidden_size < 1) {
    return absl::InvalidArgumentError("the offered peer link has an impossible shape");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<GpuPeerLinks>> GpuPeerLinks::Create(const device::DeviceTable* table, int ordinal,
                                                                   const Options& options) {
  std::unique_ptr<GpuPeerLinks> peer_links(new GpuPeerLinks(table, options));
  WINNOW_ASSIGN_OR_RETURN(peer_links->device_, table->open_device(ordinal));
  if (!options.model.empty()) WINNOW_RETURN_IF_ERROR(peer_links->LoadProjections({}));
  return peer_links;
}

absl::Status GpuPeerLinks::LoadProjections(WeightShard part) {
  const DeviceWeightOptions weights{.dtype = options_.compute, .shard = part, .parts = WeightParts::kQueryProjections};
  std::unique_ptr<DeviceWeights> loaded;
  if (IsSyntheticModel(options_.model)) {
    WINNOW_ASSIGN_OR_RETURN(const ModelConfig config, SyntheticModelConfig(options_.model));
    WINNOW_ASSIGN_OR_RETURN(loaded, DeviceWeights::Synthesize(*table_, *device_, config, kSyntheticSeed,
                                                              /*query_bias=*/false, weights));
  } else {
    WINNOW_ASSIGN_OR_RETURN(const std::shared_ptr<const Checkpoint> checkpoint, Checkpoint::Open(options_.model));
    WINNOW_ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(options_.model));
    WINNOW_RETURN_IF_ERROR(CheckDeviceModel(config, weights));
    WINNOW_ASSIGN_OR_RETURN(loaded, DeviceWeights::Load(*table_, *device_, *checkpoint, config, weights));
  }
  projections_[part.index * loaded->config().num_kv_heads] = std::move(loaded);
  return absl::OkStatus();
}

absl::Status GpuPeerLinks::LoadProjectionsOf(const KvShard& shard, const KvLayout& layout) {
  if (projections_.empty()) return absl::OkStatus();
  const auto found = projections_.find(shard.first_kv_head);
  if (found != projections_.end() && found->second->config().num_kv_heads == shard.num_kv_heads) {
    return absl::OkStatus();
  }
  if (layout.num_kv_heads % shard.num_kv_heads != 0 || shard.first_kv_head % shard.num_kv_heads != 0) {
    return absl::FailedPreconditionError("predictor depth over peer links needs shards of as many kv heads each");
  }
  if (store_ == nullptr) projections_.clear();  // of the whole model: nobody has used them
  return LoadProjections(
      {.index = shard.first_kv_head / shard.num_kv_heads, .count = layout.num_kv_heads / shard.num_kv_heads});
}

absl::Status GpuPeerLinks::MakeStore(const PeerOffer& offer, const ServedShape& shape, const KvLayout& layout) {
  const DeviceKvShape wanted = DeviceKvShapeFor(
      offer.spec, layout, static_cast<uint32_t>(offer.max_rows) * kCopiesPerBatchRow, offer.max_positions, 0);
  WINNOW_ASSIGN_OR_RETURN(const std::unique_ptr<device::Device> now, table_->open_device(device_->ordinal()));
  const bool is_given = options_.memory_bytes > 0;
  const size_t memory = is_given ? options_.memory_bytes : now->info().free_bytes / 10 * 9;
  DeviceKvShape tables = wanted;
  tables.num_blocks = 0;
  const size_t peer_link_bytes = GpuPeerLink::DeviceBytes(table_, tables, offer.spec, ModelOf(shape, offer.shard),
                                                          GpuPeerLink::ExchangeOf(offer, layout));
  size_t projections = 0;
  for (const auto& [first_head, weights] : projections_) projections += is_given ? weights->bytes() : 0;
  if (options_.host_bytes > 0 && !wanted.key_copy) {
    return absl::FailedPreconditionError(
        "with rows in host memory (--device-host-memory) a peer link scores keys from their 8-bit copy: "
        "key_copy must not be none");
  }
  const size_t beside =
      kRoomForPeerLinks * peer_link_bytes + SequenceCopies::StagingBytes(layout) + projections + kUncountedBytes;
  const absl::Status made = [&]() -> absl::Status {
    if (memory <= beside) return absl::ResourceExhaustedError("nothing is left for sequences");
    WINNOW_ASSIGN_OR_RETURN(store_, SequenceCopies::Create(table_, device_.get(), wanted, offer.spec, memory - beside,
                                                           options_.host_bytes, executor_));
    return absl::OkStatus();
  }();
  if (made.code() != absl::StatusCode::kResourceExhausted) return made;
  return absl::ResourceExhaustedError(absl::StrFormat(
      "of %.1f MiB of the cache rank's GPU%s, %d peer links of %d batch rows take %.1f MiB each, query projections "
      "%.1f MiB and "
      "rows on their way %.1f MiB: %s",
      InMib(memory), is_given ? " (three quarters of --device-memory)" : "", kRoomForPeerLinks, offer.max_rows,
      InMib(peer_link_bytes), InMib(projections), InMib(SequenceCopies::StagingBytes(layout)), made.message()));
}

DeviceSelection::Model GpuPeerLinks::ModelOf(const ServedShape& shape, const KvShard& shard) const {
  const auto found = projections_.find(shard.first_kv_head);
  return {.rope = shape.model.rope,
          .attention_scale = shape.model.attention_scale,
          .queries = found == projections_.end() ? nullptr : found->second.get()};
}

absl::Status GpuPeerLinks::CheckModel(const PeerOffer& offer) const {
  if (offer.spec.predictor != Predictor::kDepth) return absl::OkStatus();
  if (projections_.empty()) {
    return absl::FailedPreconditionError("predictor depth over a peer link needs --model on the cache rank");
  }
  const bool other_size = projections_.begin()->second->config().hidden_size != offer.hidden_size;
  if (other_size || (!offer.synthetic_model.empty() && offer.synthetic_model != options_.model)) {
    return absl::FailedPreconditionError("the cache rank's --model is another one");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<DevicePeerLink>> GpuPeerLinks::Open(const PeerOffer& offer, const ServedShape& shape) {
  WINNOW_RETURN_IF_ERROR(CheckOffer(offer));
  WINNOW_RETURN_IF_ERROR(CheckModel(offer));
  if (shape.layout.dtype != Dtype::kBf16)
    return absl::FailedPreconditionError("a peer link carries rows of bf16 alone");
  PeerOffer local = offer;
  if (offer.shard.num_layers == 0) local.shard = WholeModel(shape.layout);
  WINNOW_RETURN_IF_ERROR(CheckShard(shape.layout, local.shard));
  if (local.shard.num_layers != shape.layout.num_layers) {
    return absl::FailedPreconditionError("a peer link carries all layers of its kv heads");
  }
  local.spec = SpecOfShard(offer.spec, shape.layout, local.shard);
  const KvLayout layout = LayoutOf(shape.layout, local.shard);
  WINNOW_RETURN_IF_ERROR(device::PeerLink::CheckReachable(*device_, offer.address));
  if (store_ != nullptr && !(store_->kv().shape().layout == layout)) {
    return absl::FailedPreconditionError(absl::StrCat("the cache rank has peer links of ",
                                                      store_->kv().shape().layout.num_kv_heads,
                                                      " kv heads, and not of ", layout.num_kv_heads));
  }
  if (local.spec.predictor == Predictor::kDepth) {
    WINNOW_RETURN_IF_ERROR(LoadProjectionsOf(local.shard, shape.layout));
  }
  if (store_ == nullptr) WINNOW_RETURN_IF_ERROR(MakeStore(local, shape, layout));
  if (!(store_->spec() == local.spec) || store_->kv().shape().max_positions < offer.max_positions) {
    return absl::FailedPreconditionError("the cache rank has peer links for another selection or shorter sequences");
  }
  WINNOW_ASSIGN_OR_RETURN(std::unique_ptr<DevicePeerLink> peer_link,
                          GpuPeerLink::Create(table_, device_.get(), store_.get(), ModelOf(shape, local.shard), local));
  return peer_link;
}

DevicePeerLinks::CopyBytes GpuPeerLinks::copy_bytes() const {
  if (store_ == nullptr) return {};
  const DeviceKvStore::BlockUse blocks = store_->kv().block_use();
  const uint64_t bytes = store_->kv().shape().layout.block_bytes();
  return {.device = blocks.device * bytes,
          .device_used = blocks.device_used * bytes,
          .host = blocks.dram * bytes,
          .host_used = blocks.dram_used * bytes};
}

void GpuPeerLinks::OnRows(const CachedSequence& sequence, int layer, uint32_t first, uint32_t count,
                          const std::byte* rows) {
  if (store_ != nullptr) store_->OnRows(sequence, layer, first, count, rows);
}

void GpuPeerLinks::Truncate(uint64_t sequence_id, uint32_t position) {
  if (store_ != nullptr) store_->Truncate(sequence_id, position);
}

void GpuPeerLinks::Forget(uint64_t sequence_id) {
  if (store_ != nullptr) store_->Forget(sequence_id);
}

void GpuPeerLinks::Retain(const std::function<bool(uint64_t)>& stays) {
  if (store_ != nullptr) store_->Retain(stays);
}

}  // namespace winnow
