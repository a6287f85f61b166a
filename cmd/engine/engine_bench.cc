#include "cmd/engine_bench.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "absl/strings/str_format.h"
#include "cmd/query_drift.h"
#include "common/base/check.h"
#include "common/selection/spec_text.h"
#include "inference_rank/device/device_prefill.h"
#include "kernels/cuda/plugin.h"

namespace winnow {
namespace {

constexpr uint32_t kMaxSteps = 640;  // that one batch of sequences decodes: tuning, then timing
constexpr int kGroupSteps = 8;       // timed as one, so that launching hides behind the step before
constexpr int kGroups = 11;
constexpr double kOverlapTolerance = 0.02;
constexpr size_t kFillRows = 1 << 20;

bool Selects(DecodeMode mode) {
  return mode == DecodeMode::kColocated || mode == DecodeMode::kDisaggregated;
}

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::string Gb(size_t bytes) {
  return absl::StrFormat("%.2f GB", static_cast<double>(bytes) / 1e9);
}

size_t RowBytes(const KvLayout& layout) {
  return layout.row_bytes() + (layout.dtype == Dtype::kBf16 ? 0 : 2 * sizeof(float));
}

}  // namespace

nlohmann::ordered_json ToJson(const DecodeMeasurement& result) {
  nlohmann::ordered_json json = {{"mode", DecodeModeName(result.mode)},
                                 {"batch", result.batch},
                                 {"step_us", result.step_us},
                                 {"floor_us", result.floor_us},
                                 {"over_floor", result.step_us / result.floor_us},
                                 {"tokens_per_second", result.batch * 1e6 / result.step_us}};
  if (result.selects) {
    json["overlap"] = result.overlap;
    json["query_strength"] = result.query_strength;
    json["resident"] = result.resident;
    json["pushed_bytes_per_step"] = result.pushed_bytes;
  }
  for (const PartTime& part : result.parts) {
    json["parts"].push_back({{"part", part.name},
                             {"alone_us", part.alone_us},
                             {"left_out_us", part.marginal_us},
                             {"floor_us", part.floor_us}});
  }
  return json;
}

nlohmann::ordered_json ToJson(const PrefillMeasurement& result) {
  return {{"tokens", result.tokens},
          {"us", result.us},
          {"tokens_per_second", result.tokens * 1e6 / result.us},
          {"flops", result.flops},
          {"gemm_flops_per_us", result.gemm_flops_per_us},
          {"of_gemm_rate", result.flops / result.us / result.gemm_flops_per_us}};
}

absl::StatusOr<std::unique_ptr<EngineBench>> EngineBench::Open(const ModelConfig& config,
                                                               const BenchEngineOptions& options,
                                                               const BenchEnginePlan& plan) {
  std::unique_ptr<EngineBench> bench(new EngineBench(config, options, plan));
  WINNOW_ASSIGN_OR_RETURN(bench->table_, cuda::LoadPlugin());
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
  const bool beside = std::count(plan_.modes.begin(), plan_.modes.end(), DecodeMode::kDisaggregated) > 0;
  std::vector<cuda::Device*> opened;
  for (int r = 0; r < plan_.num_ranks; ++r) {
    Rank& rank = ranks_.emplace_back();
    WINNOW_ASSIGN_OR_RETURN(rank.device, table_->open_device(plan_.devices[r]));
    opened.push_back(rank.device.get());
    if (!beside) continue;
    WINNOW_ASSIGN_OR_RETURN(rank.cache_device, table_->open_device(plan_.devices[plan_.num_ranks + r]));
    opened.push_back(rank.cache_device.get());
  }
  for (cuda::Device* device : opened) {
    for (const cuda::Device* peer : opened) {
      if (peer != device) WINNOW_RETURN_IF_ERROR(device->EnablePeerAccess(peer->ordinal()));
    }
  }
  return absl::OkStatus();
}

absl::Status EngineBench::LoadWeights() {
  DeviceLayerOptions layers{.max_prefill_rows = plan_.prefill_tokens.empty() ? 0 : options_.chunk_tokens,
                            .max_list_rows = 0,
                            .kv_dtype = options_.kv};
  for (const DecodeMode mode : plan_.modes) {
    layers.max_list_rows = std::max(layers.max_list_rows, SlotShape(mode, 1).max_list_rows());
  }
  for (int r = 0; r < plan_.num_ranks; ++r) {
    Rank& rank = ranks_[r];
    const DeviceWeightOptions weights{.dtype = options_.weights, .shard = {r, plan_.num_ranks}};
    const size_t weight_bytes = DeviceWeightBytes(*table_, config_, weights);
    const size_t activation_bytes = DeviceLayers::ActivationBytes(*table_, shard_config_, layers);
    if (weight_bytes + activation_bytes > rank.device->info().free_bytes) {
      return absl::ResourceExhaustedError(absl::StrCat("the weights take ", Gb(weight_bytes), ", activations ",
                                                       Gb(activation_bytes), ", and GPU ", rank.device->ordinal(),
                                                       " has ", Gb(rank.device->info().free_bytes), " free"));
    }
    WINNOW_ASSIGN_OR_RETURN(rank.weights, DeviceWeights::Synthesize(*table_, *rank.device, config_, options_.seed,
                                                                    /*query_bias=*/true, weights));
    WINNOW_ASSIGN_OR_RETURN(rank.layers, DeviceLayers::Create(*table_, *rank.device, *rank.weights, layers));
  }
  return absl::OkStatus();
}

absl::Status EngineBench::MeasureReadRate() {
  constexpr size_t kBytes = size_t{4} << 30;
  WINNOW_ASSIGN_OR_RETURN(const auto memory, device().Allocate(kBytes));
  WINNOW_ASSIGN_OR_RETURN(const auto sum, device().Allocate(256));
  const cuda::Stream stream = device().NewStream();
  table_->elementwise->fill_normal(stream, memory->data(), kBytes / 2, options_.seed, 1.0f);
  std::vector<double> times;
  for (int i = 0; i < 9; ++i) {
    WINNOW_ASSIGN_OR_RETURN(times.emplace_back(), device().TimeUs(stream, [&](cuda::Stream timed) {
      table_->probe->read(timed, memory->data(), kBytes, static_cast<uint32_t*>(sum->data()));
    }));
  }
  read_bytes_per_us_ = kBytes / Median(std::move(times));
  return absl::OkStatus();
}

std::string EngineBench::Description() const {
  return absl::StrFormat("%s, %s read at %.2f TB/s; %s, weights %s %s, kv %s, context %d; selection %s",
                         device().info().name, Gb(device().info().total_bytes), read_bytes_per_us_ / 1e6,
                         options_.model, Gb(weights().bytes()), DtypeName(options_.weights), DtypeName(options_.kv),
                         plan_.context_tokens, SpecText(plan_.spec));
}

nlohmann::ordered_json EngineBench::DescriptionJson() const {
  return {{"gpu", device().info().name},
          {"read_bytes_per_us", read_bytes_per_us_},
          {"model", options_.model},
          {"weights", DtypeName(options_.weights)},
          {"weight_bytes_per_step", weights().bytes_per_step()},
          {"kv", DtypeName(options_.kv)},
          {"context_tokens", plan_.context_tokens},
          {"selection", SpecText(plan_.spec)},
          {"devices", plan_.devices},
          {"tensor_parallel", plan_.num_ranks}};
}

DecodeSlotShape EngineBench::SlotShape(DecodeMode mode, int batch) const {
  DecodeSlotShape shape{.layout = shard_config_.kv_layout(options_.kv),
                        .max_rows = DecodeGraph::BucketFor(batch),
                        .hidden_size = config_.hidden_size};
  if (mode == DecodeMode::kDense) {
    shape.dense_tokens = plan_.context_tokens + kMaxSteps;
    return shape;
  }
  shape.sinks = plan_.spec.sink_tokens;
  shape.max_budget = plan_.spec.budget_tokens;
  shape.pool_slots = static_cast<uint32_t>(std::ceil(plan_.spec.budget_tokens * options_.pool_factor));
  shape.recent_tokens = plan_.spec.recent_tokens;
  return shape;
}

GpuCacheSideOptions EngineBench::CacheOptions(int rank, int batch) const {
  return {.spec = plan_.spec,
          .config = config_,
          .shard = {rank, plan_.num_ranks},
          .num_sequences = batch,
          .context_tokens = plan_.context_tokens,
          .max_steps = kMaxSteps,
          .max_rows = DecodeGraph::BucketFor(batch),
          .weights = options_.weights,
          .weight_seed = options_.seed,
          .kv_seed = options_.seed + 1};
}

absl::Status EngineBench::CheckFits(DecodeMode mode, int batch) const {
  const size_t slots = DecodeSlots::Bytes(SlotShape(mode, batch));
  size_t here = slots, store = 0;
  std::string parts = absl::StrCat("slots ", Gb(slots));
  if (Selects(mode)) {
    const DeviceKvBytes bytes = BytesOf(GpuCacheSide::StoreShape(CacheOptions(0, batch)));
    const size_t queries = GpuCacheSide::WeightBytes(*table_, CacheOptions(0, batch));
    store = bytes.rows + bytes.index() + queries;
    absl::StrAppend(&parts, ", rows ", Gb(bytes.rows), ", their index ", Gb(bytes.index()), ", query projections ",
                    Gb(queries));
    if (mode == DecodeMode::kColocated) here += store;
  }
  // What opening the device saw, less what has been taken since.
  const size_t total = device().info().free_bytes, taken = weights().bytes() + (size_t{2} << 30);
  const size_t free_bytes = total > taken ? total - taken : 0;
  if (here > free_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("does not fit: ", parts, ", and beside weights of ",
                                                     Gb(weights().bytes()), " and 2 GiB GPU ", device().ordinal(),
                                                     " has ", Gb(free_bytes)));
  }
  if (mode == DecodeMode::kDisaggregated && store > ranks_[0].cache_device->info().free_bytes) {
    const cuda::Device& beside = *ranks_[0].cache_device;
    return absl::ResourceExhaustedError(
        absl::StrCat("does not fit: ", parts, ", and GPU ", beside.ordinal(), " has ", Gb(beside.info().free_bytes)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<DecodeSlots>> EngineBench::FilledSlots(cuda::Device& device, DecodeMode mode,
                                                                      int batch) {
  const DecodeSlotShape shape = SlotShape(mode, batch);
  WINNOW_ASSIGN_OR_RETURN(auto slots, DecodeSlots::Create(device, shape, options_.seed));
  const cuda::Stream stream = device.NewStream();
  const size_t row_elements = 2 * static_cast<size_t>(shape.layout.head_dim);
  std::unique_ptr<cuda::DeviceMemory> staging;
  if (shape.layout.dtype != Dtype::kBf16) {
    WINNOW_ASSIGN_OR_RETURN(staging, device.Allocate(kFillRows * row_elements * DtypeBytes(Dtype::kBf16)));
  }
  for (size_t first = 0; first < shape.num_slots(); first += kFillRows) {
    const size_t rows = std::min(kFillRows, shape.num_slots() - first);
    auto* const to = static_cast<std::byte*>(slots->slot_pool()) + first * shape.layout.row_bytes();
    void* const bf16 = staging == nullptr ? to : staging->data();
    table_->elementwise->fill_normal(stream, bf16, rows * row_elements, options_.seed + 2 + first, 1.0f);
    if (staging == nullptr) continue;
    table_->attention->quantize_rows(stream, bf16, static_cast<int>(rows), shape.layout.head_dim, shape.layout.dtype,
                                     to, slots->scales() + 2 * first);
  }
  WINNOW_RETURN_IF_ERROR(device.Synchronize(stream));
  if (mode == DecodeMode::kFixed) {
    WINNOW_RETURN_IF_ERROR(slots->SelectRange(shape.sinks, shape.max_budget, options_.seed));
  }
  return slots;
}

absl::Status EngineBench::SeatRows(DecodeGraph& graph, int batch) {
  std::vector<std::optional<DecodeRow>> rows;
  for (int i = 0; i < batch; ++i) {
    // Tokens that are drawn, not the largest: what generates text does that, and no row falls into a loop.
    rows.push_back(
        DecodeRow{.token_id = static_cast<uint32_t>(1000 + i),
                  .position = plan_.context_tokens,
                  .sampling = {.temperature = 1, .sample_index = static_cast<uint32_t>(i), .seed = options_.seed}});
  }
  return graph.SetRows(rows);
}

absl::Status EngineBench::SynchronizeAll() const {
  for (const Rank& rank : ranks_) {
    WINNOW_RETURN_IF_ERROR(rank.device->SynchronizeAll());
    if (rank.cache_device != nullptr) WINNOW_RETURN_IF_ERROR(rank.cache_device->SynchronizeAll());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<EngineBench::Side>> EngineBench::NewSides(DecodeMode mode, int batch) {
  std::vector<Side> sides(ranks_.size());
  TensorParallelGroup group{.num_ranks = plan_.num_ranks};
  for (size_t r = 0; r < sides.size(); ++r) {
    WINNOW_ASSIGN_OR_RETURN(sides[r].slots, FilledSlots(*ranks_[r].device, mode, batch));
    if (plan_.num_ranks == 1) continue;
    WINNOW_ASSIGN_OR_RETURN(sides[r].memory,
                            TensorParallelMemory::Create(*ranks_[r].device, *ranks_[r].layers, plan_.num_ranks,
                                                         sides[r].slots->shape().max_rows));
    group.boxes[r] = sides[r].memory->box();
  }
  for (size_t r = 0; r < sides.size(); ++r) {
    Side& side = sides[r];
    Rank& rank = ranks_[r];
    group.rank = static_cast<int>(r);
    DecodeGraphOptions options{.mode = mode, .group = group};
    if (Selects(mode)) {
      cuda::Device& beside = mode == DecodeMode::kColocated ? *rank.device : *rank.cache_device;
      WINNOW_ASSIGN_OR_RETURN(
          side.cache, GpuCacheSide::Create(*table_, beside, *side.slots, CacheOptions(static_cast<int>(r), batch)));
      options.inbox = side.cache->inbox();
      options.hidden_layers = side.cache->hidden_layers();
      options.cache = &side.cache->colocated();
    }
    WINNOW_ASSIGN_OR_RETURN(side.graph, DecodeGraph::Create(*rank.device, *rank.layers, *side.slots, options));
    WINNOW_RETURN_IF_ERROR(SeatRows(*side.graph, batch));
    WINNOW_RETURN_IF_ERROR(side.graph->Prepare(batch));
  }
  return sides;
}

absl::Status EngineBench::Step(std::vector<Side>& sides, DecodeMode mode, int batch) {
  for (Side& side : sides) {
    if (mode == DecodeMode::kDisaggregated) WINNOW_RETURN_IF_ERROR(side.cache->LaunchPlan());
    if (mode == DecodeMode::kColocated) WINNOW_RETURN_IF_ERROR(side.cache->colocated().CountPlan());
    WINNOW_RETURN_IF_ERROR(side.graph->Step(batch));
  }
  return absl::OkStatus();
}

absl::Status EngineBench::CheckWaits(const std::vector<Side>& sides) const {
  for (const Side& side : sides) {
    WINNOW_RETURN_IF_ERROR(side.graph->WaitError());
    if (side.cache != nullptr) WINNOW_RETURN_IF_ERROR(side.cache->WaitError());
  }
  return absl::OkStatus();
}

absl::StatusOr<double> EngineBench::TimeSteps(std::vector<Side>& sides, DecodeMode mode, int batch) {
  std::vector<double> times;
  for (int group = 0; group < kGroups + 2; ++group) {
    absl::Status status;
    WINNOW_ASSIGN_OR_RETURN(const double us, device().TimeUs(sides[0].graph->stream(), [&](cuda::Stream) {
      for (int i = 0; i < kGroupSteps && status.ok(); ++i) status = Step(sides, mode, batch);
    }));
    WINNOW_RETURN_IF_ERROR(status);
    WINNOW_RETURN_IF_ERROR(SynchronizeAll());
    if (group >= 2) times.push_back(us / kGroupSteps);
  }
  WINNOW_RETURN_IF_ERROR(CheckWaits(sides));
  return Median(std::move(times));
}

absl::StatusOr<double> EngineBench::TimeGraph(DecodeGraph& graph, int batch, DecodeParts parts) {
  constexpr int kLaunches = 3, kRepeats = 5;
  WINNOW_RETURN_IF_ERROR(SeatRows(graph, batch));
  WINNOW_ASSIGN_OR_RETURN(const auto captured, graph.Capture(DecodeGraph::BucketFor(batch), parts));
  std::vector<double> times;
  for (int i = 0; i < kRepeats + 1; ++i) {
    WINNOW_ASSIGN_OR_RETURN(const double us, device().TimeUs(graph.stream(), [&](cuda::Stream stream) {
      for (int k = 0; k < kLaunches; ++k) captured->Launch(stream);
    }));
    if (i > 0) times.push_back(us / kLaunches);
  }
  return Median(std::move(times));
}

absl::StatusOr<double> EngineBench::MeasureOverlap(std::vector<Side>& sides, DecodeMode mode, int batch) {
  const DecodeSlots& slots = *sides[0].slots;
  const DecodeSlotShape& shape = slots.shape();
  const int settle = plan_.spec.predictor == Predictor::kTemporal ? static_cast<int>(plan_.spec.window) + 2 : 2;
  for (int i = 0; i < settle; ++i) WINNOW_RETURN_IF_ERROR(Step(sides, mode, batch));
  const cuda::Stream stream = sides[0].graph->stream();
  std::vector<uint32_t> selections[2];
  for (std::vector<uint32_t>& indices : selections) {
    WINNOW_RETURN_IF_ERROR(Step(sides, mode, batch));
    WINNOW_RETURN_IF_ERROR(SynchronizeAll());
    indices.resize(shape.num_lists() * shape.max_budget);
    device().CopyAsync(indices.data(), slots.inbox().pool_indices, indices.size() * sizeof(uint32_t), stream);
    WINNOW_RETURN_IF_ERROR(device().Synchronize(stream));
  }
  WINNOW_RETURN_IF_ERROR(CheckWaits(sides));
  // Of the rows that have a sequence. A row keeps its pool index while it is resident, and victims are of selections
  // before the last.
  std::vector<uint32_t> entries[2];
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    const auto first = static_cast<int64_t>(slots.list(layer, 0, 0) * shape.max_budget);
    const auto last = first + static_cast<int64_t>(batch) * shape.layout.num_kv_heads * shape.max_budget;
    for (int i : {0, 1})
      entries[i].insert(entries[i].end(), selections[i].begin() + first, selections[i].begin() + last);
  }
  return MeanOverlap(entries[0], entries[1], shape.max_budget, shape.max_budget, shape.pool_slots);
}

absl::Status EngineBench::Tune(std::vector<Side>& sides, DecodeMode mode, DecodeMeasurement& result) {
  double low = std::log(0.05), high = std::log(60.0);
  for (int trial = 0; trial < 12; ++trial) {
    const double middle = (low + high) / 2;
    result.query_strength = std::exp(middle);
    for (size_t r = 0; r < sides.size(); ++r) {
      const std::vector<float> bias = QueryBias(shard_config_, result.query_strength, options_.seed + r);
      WINNOW_RETURN_IF_ERROR(ranks_[r].weights->SetQueryBias(*ranks_[r].device, sides[r].graph->stream(), bias));
      WINNOW_RETURN_IF_ERROR(sides[r].cache->SetQueryBias(bias));
    }
    WINNOW_ASSIGN_OR_RETURN(result.overlap, MeasureOverlap(sides, mode, result.batch));
    if (std::abs(result.overlap - options_.overlap) <= kOverlapTolerance / 2) return absl::OkStatus();
    (result.overlap < options_.overlap ? low : high) = middle;
  }
  if (std::abs(result.overlap - options_.overlap) <= kOverlapTolerance) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrFormat("adjacent selections overlap by %.3f at the closest (strength %.3f), not by --overlap=%.2f",
                      result.overlap, result.query_strength, options_.overlap));
}

size_t EngineBench::AttendedBytes(DecodeMode mode, int batch) const {
  const SelectionSpec& spec = plan_.spec;
  const KvLayout layout = shard_config_.kv_layout(options_.kv);
  const size_t rows =
      mode == DecodeMode::kDense ? plan_.context_tokens : spec.sink_tokens + spec.budget_tokens + spec.recent_tokens;
  return static_cast<size_t>(batch) * layout.num_lists() * rows * RowBytes(layout);
}

size_t EngineBench::ScoredBytes(int batch) const {
  const SelectionSpec& spec = plan_.spec;
  const size_t head_dim = config_.head_dim, context = plan_.context_tokens;
  const size_t key_bytes = spec.key_copy == KeyCopy::kNone ? 2 * head_dim : head_dim + sizeof(float);
  size_t bytes = 0;
  if (spec.scorer != Scorer::kToken) bytes += context / spec.page_tokens * 4 * head_dim;
  if (spec.scorer == Scorer::kToken) bytes += context * key_bytes;
  if (spec.scorer == Scorer::kTwoStage) {
    bytes += std::min<size_t>(context, size_t{spec.budget_tokens} * spec.candidate_factor) * key_bytes;
  }
  return static_cast<size_t>(batch) * shard_config_.kv_layout(Dtype::kBf16).num_lists() * bytes;
}

double EngineBench::PartFloorUs(DecodePart part, DecodeMode mode, int batch) const {
  const auto matrix = [](const cuda::DeviceMatrix& m) {
    return DtypeBytes(m.dtype, static_cast<size_t>(m.out_features) * m.in_features);
  };
  const DeviceLayerWeights& layer = weights().layer(0);
  const size_t layers = config_.num_layers;
  switch (part) {
    case DecodePart::kQkv:
      return FloorUs(layers * matrix(layer.qkv));
    case DecodePart::kAttention:
      return FloorUs(AttendedBytes(mode, batch));
    case DecodePart::kOutput:
      return FloorUs(layers * matrix(layer.o));
    case DecodePart::kGateUp:
      return FloorUs(layers * matrix(layer.gate_up));
    case DecodePart::kDown:
      return FloorUs(layers * matrix(layer.down));
    case DecodePart::kLmHead:
      return FloorUs(matrix(weights().lm_head()));
    default:
      return 0;
  }
}

absl::Status EngineBench::BreakDown(DecodeGraph& graph, DecodeMeasurement& result) {
  const int batch = result.batch;
  const DecodeParts alone_parts = DecodeParts::All().Without(DecodePart::kExchange).Without(DecodePart::kAllReduce);
  WINNOW_ASSIGN_OR_RETURN(const double nothing, TimeGraph(graph, batch, DecodeParts::None()));
  WINNOW_ASSIGN_OR_RETURN(const double all, TimeGraph(graph, batch, alone_parts));
  result.parts.push_back({.name = "begin step", .alone_us = nothing});
  for (int i = 0; i < kNumDecodeParts; ++i) {
    const auto part = static_cast<DecodePart>(i);
    if (!alone_parts.Has(part)) continue;
    WINNOW_ASSIGN_OR_RETURN(const double alone, TimeGraph(graph, batch, DecodeParts::Only(part)));
    WINNOW_ASSIGN_OR_RETURN(const double others, TimeGraph(graph, batch, alone_parts.Without(part)));
    result.parts.push_back({.name = DecodePartName(part),
                            .alone_us = alone - nothing,
                            .marginal_us = all - others,
                            .floor_us = PartFloorUs(part, result.mode, batch)});
  }
  if (plan_.num_ranks > 1) result.parts.push_back({.name = "all-reduce", .marginal_us = result.step_us - all});
  return absl::OkStatus();
}

absl::Status EngineBench::BreakDownCache(GpuCacheSide& cache, DecodeMeasurement& result) {
  using Kind = SelectAction::Kind;
  constexpr std::pair<const char*, Kind> kKinds[] = {{"own query", Kind::kQueriesOfOwn},
                                                     {"depth query", Kind::kQueriesFromHidden},
                                                     {"past query", Kind::kQueriesFromPast},
                                                     {"select+diff", Kind::kSelect},
                                                     {"push", Kind::kPush},
                                                     {"append", Kind::kAppend}};
  for (const auto& [name, kind] : kKinds) {
    WINNOW_ASSIGN_OR_RETURN(const double us, cache.TimeActions(kind));
    const double floor = kind == Kind::kSelect ? FloorUs(ScoredBytes(result.batch)) : 0;
    result.parts.push_back({.name = name, .alone_us = us, .floor_us = floor});
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> EngineBench::PushedRows(std::vector<Side>& sides) const {
  uint64_t rows = 0;
  for (Side& side : sides) {
    WINNOW_ASSIGN_OR_RETURN(const uint64_t pushed, side.cache->PushedRows());
    rows += pushed;
  }
  return rows;
}

absl::StatusOr<DecodeMeasurement> EngineBench::Decode(DecodeMode mode, int batch) {
  WINNOW_RETURN_IF_ERROR(CheckFits(mode, batch));
  DecodeMeasurement result{.mode = mode, .batch = batch, .selects = Selects(mode)};
  WINNOW_ASSIGN_OR_RETURN(std::vector<Side> sides, NewSides(mode, batch));
  uint64_t pushed = 0;
  if (result.selects) {
    WINNOW_RETURN_IF_ERROR(Tune(sides, mode, result));
    WINNOW_ASSIGN_OR_RETURN(pushed, PushedRows(sides));
  }
  WINNOW_ASSIGN_OR_RETURN(result.step_us, TimeSteps(sides, mode, batch));
  result.floor_us = FloorUs(weights().bytes_per_step() + AttendedBytes(mode, batch) +
                            (mode == DecodeMode::kColocated ? ScoredBytes(batch) : 0));
  if (!result.selects) {
    if (options_.breakdown) WINNOW_RETURN_IF_ERROR(BreakDown(*sides[0].graph, result));
  } else {
    WINNOW_ASSIGN_OR_RETURN(const uint64_t pushed_after, PushedRows(sides));
    const KvLayout layout = config_.kv_layout(Dtype::kBf16);
    const uint64_t rows = (pushed_after - pushed) / ((kGroups + 2) * kGroupSteps);
    const size_t selected = static_cast<size_t>(batch) * layout.num_lists() * plan_.spec.budget_tokens;
    result.pushed_bytes = rows * layout.row_bytes();
    result.resident = 1 - static_cast<double>(rows) / static_cast<double>(selected);
    if (options_.breakdown && plan_.num_ranks == 1) {
      WINNOW_ASSIGN_OR_RETURN(const double alone,
                              TimeGraph(*sides[0].graph, batch, DecodeParts::All().Without(DecodePart::kExchange)));
      result.parts.push_back({.name = "exchange", .marginal_us = result.step_us - alone});
      WINNOW_RETURN_IF_ERROR(BreakDownCache(*sides[0].cache, result));
    }
  }
  WINNOW_RETURN_IF_ERROR(SynchronizeAll());
  return result;
}

absl::StatusOr<double> EngineBench::GemmRate() {
  constexpr size_t kSize = 8192, kBytes = kSize * kSize * 2;
  WINNOW_ASSIGN_OR_RETURN(const auto memory, device().Allocate(3 * kBytes));
  WINNOW_ASSIGN_OR_RETURN(const auto workspace,
                          device().Allocate(std::max<size_t>(256, table_->matmul->prefill_workspace_bytes(kSize))));
  auto* const data = static_cast<std::byte*>(memory->data());
  const cuda::Stream stream = device().NewStream();
  table_->elementwise->fill_normal(stream, data, 2 * kSize * kSize, options_.seed, 1.0f);
  const auto plans = table_->matmul->open_prefill_plans();
  std::vector<double> times;
  for (int i = 0; i < 12; ++i) {
    WINNOW_ASSIGN_OR_RETURN(const double us, device().TimeUs(stream, [&](cuda::Stream timed) {
      table_->matmul->prefill_matmul(timed,
                                     {.plans = plans.get(),
                                      .x = data,
                                      .x_stride = kSize,
                                      .num_rows = kSize,
                                      .weight = {.data = data + kBytes, .out_features = kSize, .in_features = kSize},
                                      .y = data + 2 * kBytes,
                                      .y_stride = kSize,
                                      .y_dtype = Dtype::kBf16,
                                      .workspace = workspace->data()});
    }));
    if (i >= 3) times.push_back(us);
  }
  return 2.0 * kSize * kSize * kSize / Median(std::move(times));
}

absl::StatusOr<PrefillMeasurement> EngineBench::Prefill(uint32_t tokens) {
  PrefillMeasurement result{.tokens = tokens};
  WINNOW_ASSIGN_OR_RETURN(result.gemm_flops_per_us, GemmRate());
  WINNOW_ASSIGN_OR_RETURN(const auto prefill, DevicePrefill::Create(device(), *ranks_[0].layers, tokens));
  std::vector<uint32_t> ids(tokens);
  std::mt19937_64 random(options_.seed);
  for (uint32_t& id : ids) id = static_cast<uint32_t>(random() % config_.vocab_size);
  WINNOW_ASSIGN_OR_RETURN(const auto device_ids, device().Allocate(tokens * sizeof(uint32_t)));
  const cuda::Stream stream = device().NewStream(true);
  device().CopyAsync(device_ids->data(), ids.data(), tokens * sizeof(uint32_t), stream);
  WINNOW_RETURN_IF_ERROR(device().Synchronize(stream));
  std::vector<double> times;
  for (int i = 0; i < 4; ++i) {
    WINNOW_ASSIGN_OR_RETURN(const double us, device().TimeUs(stream, [&](cuda::Stream timed) {
      for (uint32_t done = 0; done < tokens; done += options_.chunk_tokens) {
        const auto count = std::min<uint32_t>(options_.chunk_tokens, tokens - done);
        prefill->Chunk(timed, static_cast<const uint32_t*>(device_ids->data()) + done, done, static_cast<int>(count));
      }
    }));
    if (i >= 1) times.push_back(us);
  }
  result.us = Median(std::move(times));
  const double n = tokens, hidden = config_.hidden_size, layers = config_.num_layers;
  const double rest = hidden * config_.q_features() + 3 * hidden * config_.intermediate_size;
  // The last layer gives its rows alone.
  result.flops = 2 * n * (layers * hidden * config_.qkv_features() + (layers - 1) * rest) +
                 (layers - 1) * 2 * config_.q_features() * n * (n + 1);
  return result;
}

}  // namespace winnow
