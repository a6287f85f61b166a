#include "tools/engine/engine_bench.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/selection/spec_text.h"
#include "kernels/plugin/plugin.h"
#include "tools/engine/decode_breakdown.h"
#include "tools/engine/prefill_bench.h"

namespace winnow {
namespace {

constexpr double kOverlapTolerance = 0.02;
constexpr double kWeakest = 0.05, kStrongest = 60;   // of QueryBias
constexpr size_t kMostDramBytes = size_t{64} << 30;  // of one cache rank: pinning takes seconds
constexpr size_t kSlackBytes = size_t{2} << 30;      // activations, graphs, the driver

std::string InGb(size_t bytes) {
  return absl::StrFormat("%.2f GB", static_cast<double>(bytes) / 1e9);
}

}  // namespace

absl::StatusOr<std::unique_ptr<EngineBench>> EngineBench::Open(const ModelConfig& config,
                                                               const BenchEngineOptions& options,
                                                               const BenchEnginePlan& plan, int num_ranks) {
  std::unique_ptr<EngineBench> bench(new EngineBench(config, options, plan, num_ranks));
  WINNOW_ASSIGN_OR_RETURN(bench->table_, device::LoadPlugin());
  WINNOW_RETURN_IF_ERROR(bench->OpenDevices());
  WINNOW_RETURN_IF_ERROR(bench->MeasureReadRate());
  WINNOW_RETURN_IF_ERROR(bench->LoadWeights());
  return bench;
}

absl::Status EngineBench::OpenDevices() {
  const int count = table_->device_count();
  for (const int ordinal : plan_.devices) {
    if (ordinal >= count) {
      return absl::InvalidArgumentError(
          absl::StrCat("--devices names GPU ", ordinal, ", and this machine has ", count));
    }
  }
  const size_t num_ranks = setting_.num_ranks;
  const bool beside = std::count(plan_.placements.begin(), plan_.placements.end(), KvPlacement::kDisaggregated) > 0 &&
                      plan_.devices.size() >= 2 * num_ranks;
  std::vector<device::Device*> opened;
  for (size_t r = 0; r < num_ranks; ++r) {
    EngineRank& rank = ranks_.emplace_back();
    WINNOW_ASSIGN_OR_RETURN(rank.device, table_->open_device(plan_.devices[r]));
    opened.push_back(rank.device.get());
    if (!beside) continue;
    WINNOW_ASSIGN_OR_RETURN(rank.cache_device, table_->open_device(plan_.devices[num_ranks + r]));
    opened.push_back(rank.cache_device.get());
  }
  for (device::Device* device : opened) {
    for (const device::Device* peer : opened) {
      if (peer->ordinal() == device->ordinal()) continue;
      WINNOW_RETURN_IF_ERROR(device->EnablePeerAccess(peer->ordinal()));
    }
  }
  return absl::OkStatus();
}

absl::Status EngineBench::LoadWeights() {
  for (size_t r = 0; r < ranks_.size(); ++r) {
    EngineRank& rank = ranks_[r];
    const DeviceWeightOptions weights{.dtype = options_.weights, .shard = {static_cast<int>(r), setting_.num_ranks}};
    const size_t weight_bytes = DeviceWeightBytes(*table_, setting_.config, weights);
    if (weight_bytes + kSlackBytes > rank.device->info().free_bytes) {
      return absl::ResourceExhaustedError(absl::StrCat("the weights take ", InGb(weight_bytes), ", activations up to ",
                                                       InGb(kSlackBytes), ", and GPU ", rank.device->ordinal(), " has ",
                                                       InGb(rank.device->info().free_bytes), " free"));
    }
    WINNOW_ASSIGN_OR_RETURN(rank.weights,
                            DeviceWeights::Synthesize(*table_, *rank.device, setting_.config, options_.seed,
                                                      /*query_bias=*/!setting_.config.latent.has_value(), weights));
  }
  return absl::OkStatus();
}

absl::Status EngineBench::MeasureReadRate() {
  constexpr size_t kBytes = size_t{4} << 30;
  WINNOW_ASSIGN_OR_RETURN(const auto memory, device().Allocate(kBytes));
  WINNOW_ASSIGN_OR_RETURN(const auto sum, device().Allocate(256));
  const device::Stream stream = device().NewStream();
  table_->elementwise->fill_normal(stream, memory->data(), kBytes / 2, options_.seed, 1.0f);
  std::vector<double> times;
  for (int i = 0; i < 9; ++i) {
    WINNOW_ASSIGN_OR_RETURN(times.emplace_back(), device().TimeUs(stream, [&](device::Stream timed) {
      table_->probe->read(timed, memory->data(), kBytes, static_cast<uint32_t*>(sum->data()));
    }));
  }
  rates_.read = kBytes / Median(std::move(times));
  return absl::OkStatus();
}

std::string EngineBench::Description() const {
  return absl::StrFormat("%s, %s read at %.2f TB/s; %s, weights %s %s on %d, contexts %s", device().info().name,
                         InGb(device().info().total_bytes), rates_.read / 1e6, options_.model, InGb(weights().bytes()),
                         DtypeName(weights().layer(0).qkv.dtype), setting_.num_ranks,
                         absl::StrJoin(plan_.contexts, ", "));
}

nlohmann::ordered_json EngineBench::DescriptionJson() const {
  return {{"gpu", device().info().name},
          {"read_bytes_per_us", rates_.read},
          {"model", options_.model},
          {"weights", DtypeName(weights().layer(0).qkv.dtype)},
          {"weight_bytes_per_step", weights().bytes_per_step()},
          {"context_tokens", plan_.contexts},
          {"devices", plan_.devices},
          {"tensor_parallel", setting_.num_ranks}};
}

absl::Status EngineBench::CheckFits(const DecodeCase& of) const {
  const DecodeBatch::Bytes bytes = DecodeBatch::BytesOf(*table_, setting_, of);
  // What opening the device saw, less what has been taken since.
  const auto check = [&](const device::Device& gpu, size_t taken, size_t wanted) {
    const size_t total = gpu.info().free_bytes, free_bytes = total > taken ? total - taken : 0;
    if (wanted <= free_bytes) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrCat("does not fit: ", bytes.parts, "; GPU ", gpu.ordinal(), " has ",
                                                     InGb(free_bytes), " beside ", InGb(taken),
                                                     " of weights and others"));
  };
  const device::Device* beside = ranks_[0].cache_device.get();
  if (of.placement != KvPlacement::kDisaggregated) return check(device(), weights().bytes() + kSlackBytes, bytes.here);
  // A cache rank's GPU may be another inference rank's as well.
  const bool shared = std::any_of(ranks_.begin(), ranks_.end(),
                                  [&](const EngineRank& rank) { return rank.device->ordinal() == beside->ordinal(); });
  if (shared) return check(device(), weights().bytes() + kSlackBytes, bytes.here + bytes.beside);
  WINNOW_RETURN_IF_ERROR(check(device(), weights().bytes() + kSlackBytes, bytes.here));
  return check(*beside, size_t{1} << 30, bytes.beside);
}

DecodeCase EngineBench::Fitted(DecodeCase of) const {
  const bool may_move =
      of.placement == KvPlacement::kDisaggregated && (of.spec.key_copy != KeyCopy::kNone || !ScoresKeys(of.spec));
  DecodeCase in_hbm = of;
  const int most = may_move ? static_cast<int>(kMostDramBytes / (setting_.shard().kv_layout(of.kv).token_bytes() *
                                                                 setting_.context_tokens))
                            : 0;
  for (of.dram_sequences = 0; of.dram_sequences <= std::min(most, of.batch); ++of.dram_sequences) {
    if (CheckFits(of).ok()) return of;
  }
  return in_hbm;
}

int EngineBench::GreatestBatch(DecodeCase of) const {
  for (of.batch = kMaxGraphRows; of.batch > 0; --of.batch) {
    if (CheckFits(of).ok()) return of.batch;
  }
  return 0;
}

absl::StatusOr<double> EngineBench::MeasureOverlap(DecodeBatch& batch, const DecodeCase& of) {
  const SelectionSpec& spec = of.spec;
  const int settle = spec.predictor == Predictor::kTemporal ? static_cast<int>(spec.window) + 2 : 2;
  for (int i = 0; i < settle; ++i) WINNOW_RETURN_IF_ERROR(batch.Step());
  WINNOW_RETURN_IF_ERROR(batch.Step());
  WINNOW_ASSIGN_OR_RETURN(const SelectedLists before, batch.Selections());
  // To the next selection that is another one.
  for (uint32_t i = 0; i < spec.reuse_interval; ++i) WINNOW_RETURN_IF_ERROR(batch.Step());
  WINNOW_ASSIGN_OR_RETURN(const SelectedLists now, batch.Selections());
  // A row keeps its pool index while it is resident, and victims are of selections before the last.
  return MeanOverlap(before, now, batch.SelectedLimit());
}

absl::Status EngineBench::Tune(DecodeBatch& batch, DecodeMeasurement& result) {
  const std::string name = SpecText(result.of.spec);
  double low = std::log(kWeakest), high = std::log(kStrongest), nearest = 2;
  const auto known = strengths_.find(name);
  for (int trial = 0; trial < 12; ++trial) {
    const double middle = trial == 0 && known != strengths_.end() ? std::log(known->second) : (low + high) / 2;
    WINNOW_RETURN_IF_ERROR(batch.SetQueryStrength(std::exp(middle)));
    WINNOW_ASSIGN_OR_RETURN(const double overlap, MeasureOverlap(batch, result.of));
    const double off = std::abs(overlap - options_.overlap);
    if (off < nearest) {
      nearest = off;
      result.overlap = overlap;
      result.query_strength = std::exp(middle);
    }
    if (off <= kOverlapTolerance / 2) break;
    (overlap < options_.overlap ? low : high) = middle;
  }
  result.is_tuned = nearest <= kOverlapTolerance;
  if (result.is_tuned) strengths_[name] = result.query_strength;
  return batch.SetQueryStrength(result.query_strength);
}

absl::Status EngineBench::MeasureExchange(DecodeBatch& batch, uint64_t pushed_before, DecodeMeasurement& result) {
  if (result.of.placement == KvPlacement::kColocated) return absl::OkStatus();
  WINNOW_ASSIGN_OR_RETURN(const uint64_t pushed, batch.PushedRows());
  const KvLayout layout = setting_.config.kv_layout(Dtype::kBf16);
  const uint64_t rows = (pushed - pushed_before) / DecodeBatch::kTimedSteps;
  const double selected = result.selected_rows * result.of.batch * static_cast<double>(layout.num_lists());
  result.pushed_bytes = rows * layout.row_bytes();
  result.resident = 1 - static_cast<double>(rows) / selected;
  return absl::OkStatus();
}

absl::StatusOr<DecodeMeasurement> EngineBench::Decode(const DecodeCase& wanted) {
  const DecodeCase of = Fitted(wanted);
  if (of.placement == KvPlacement::kDisaggregated && ranks_[0].cache_device == nullptr) {
    return absl::FailedPreconditionError("no GPUs for cache ranks beside those of the inference ranks");
  }
  if (setting_.config.latent && (of.placement != KvPlacement::kDense || of.kv != Dtype::kBf16)) {
    return absl::UnimplementedError("latent attention is measured with --mode=dense and --kv=bf16");
  }
  if (Selects(of.placement)) WINNOW_RETURN_IF_ERROR(CheckDeviceSpec(of.spec, of.rows()));
  WINNOW_RETURN_IF_ERROR(CheckFits(of));
  const int gpus = setting_.num_ranks * (of.placement == KvPlacement::kDisaggregated ? 2 : 1);
  DecodeMeasurement result{
      .of = of, .context_tokens = setting_.context_tokens, .num_ranks = setting_.num_ranks, .num_gpus = gpus};
  if (of.placement == KvPlacement::kDisaggregated) {
    result.num_gpus = std::min(gpus, static_cast<int>(plan_.num_gpus()));
  }
  WINNOW_ASSIGN_OR_RETURN(const auto batch, DecodeBatch::Create(*table_, ranks_, setting_, of));
  uint64_t pushed = 0;
  if (Selects(of.placement)) {
    WINNOW_RETURN_IF_ERROR(Tune(*batch, result));
    WINNOW_ASSIGN_OR_RETURN(pushed, batch->PushedRows());
  }
  WINNOW_ASSIGN_OR_RETURN(const uint64_t touched_before, batch->TouchedExperts());
  WINNOW_ASSIGN_OR_RETURN(result.step_us, batch->TimeSteps());
  WINNOW_ASSIGN_OR_RETURN(const uint64_t touched, batch->TouchedExperts());
  result.touched_experts = static_cast<double>(touched - touched_before) / DecodeBatch::kTimedSteps;
  StepBytes bytes{.experts = static_cast<size_t>(result.touched_experts * weights().expert_bytes())};
  bytes.weights = weights().bytes_per_step() + bytes.experts;
  if (Selects(of.placement)) {
    WINNOW_ASSIGN_OR_RETURN(const SelectedLists selected, batch->Selections());
    double rows = 0, lists = 0;
    for (const uint32_t count : selected.counts) {
      rows += count;
      lists += count > 0;
    }
    result.selected_rows = lists > 0 ? rows / lists : 0;
    WINNOW_RETURN_IF_ERROR(MeasureExchange(*batch, pushed, result));
    bytes.attended = AttendedBytes(setting_, of, &selected);
    bytes.scored = ScoredBytes(setting_, of, selected);
    bytes.pushed = result.pushed_bytes / setting_.num_ranks;
  } else {
    bytes.attended = AttendedBytes(setting_, of, nullptr);
  }
  result.weight_bytes = bytes.weights;
  result.attended_bytes = bytes.attended;
  result.scored_bytes = bytes.scored;
  result.floor_us = bytes.FloorUs(of.placement, rates_, &result.floor_of);
  if (setting_.num_ranks == 1 || !Selects(of.placement)) {
    WINNOW_RETURN_IF_ERROR(MeasureShares(*batch, result));
    const PartFloors floors{.weights = weights(), .bytes = bytes, .read_rate = rates_.read};
    if (options_.breakdown) WINNOW_RETURN_IF_ERROR(MeasureParts(*batch, floors, result));
  }
  WINNOW_RETURN_IF_ERROR(batch->Synchronize());
  return result;
}

absl::StatusOr<PrefillMeasurement> EngineBench::Prefill(uint32_t tokens) {
  PrefillBench bench(*table_, device(), weights(), {.chunk_tokens = options_.chunk_tokens, .seed = options_.seed});
  return bench.Run(tokens);
}

}  // namespace winnow
