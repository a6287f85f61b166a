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
  WINNOW_ASSIGN_OR_RETURN(const cuda::CudaTable* table, cuda::LoadPlugin());
  std::unique_ptr<EngineBench> bench(new EngineBench(config, options, plan));
  WINNOW_RETURN_IF_ERROR(bench->OpenDevices(table));
  WINNOW_RETURN_IF_ERROR(bench->MeasureReadRate());
  DeviceLayerOptions layers{.max_prefill_rows = plan.prefill_tokens.empty() ? 0 : options.chunk_tokens,
                            .max_list_rows = 0,
                            .kv_dtype = options.kv};
  for (const DecodeMode mode : plan.modes) {
    layers.max_list_rows = std::max(layers.max_list_rows, bench->SlotShape(mode, 1).max_list_rows());
  }
  const DeviceWeightOptions weights{.dtype = options.weights, .shard = {}, .parts = WeightParts::kAll};
  const size_t weight_bytes = DeviceWeightBytes(*table, config, weights);
  const size_t activation_bytes = DeviceLayers::ActivationBytes(*table, config, layers);
  const size_t free_bytes = bench->device_->info().free_bytes;
  if (weight_bytes + activation_bytes > free_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("the weights take ", Gb(weight_bytes), ", activations ",
                                                     Gb(activation_bytes), ", and GPU ", bench->device_->ordinal(),
                                                     " has ", Gb(free_bytes), " free"));
  }
  WINNOW_ASSIGN_OR_RETURN(bench->weights_, DeviceWeights::Synthesize(*table, *bench->device_, config, options.seed,
                                                                     /*query_bias=*/true, weights));
  WINNOW_ASSIGN_OR_RETURN(bench->layers_, DeviceLayers::Create(*table, *bench->device_, *bench->weights_, layers));
  return bench;
}

absl::Status EngineBench::OpenDevices(const cuda::CudaTable* table) {
  table_ = table;
  const int count = table->device_count();
  for (const int ordinal : plan_.devices) {
    if (ordinal >= count) {
      return absl::InvalidArgumentError(
          absl::StrCat("--devices names GPU ", ordinal, ", and this machine has ", count));
    }
  }
  WINNOW_ASSIGN_OR_RETURN(device_, table->open_device(plan_.devices[0]));
  if (std::count(plan_.modes.begin(), plan_.modes.end(), DecodeMode::kDisaggregated) == 0) return absl::OkStatus();
  WINNOW_ASSIGN_OR_RETURN(cache_device_, table->open_device(plan_.devices[1]));
  WINNOW_RETURN_IF_ERROR(device_->EnablePeerAccess(plan_.devices[1]));
  return cache_device_->EnablePeerAccess(plan_.devices[0]);
}

absl::Status EngineBench::MeasureReadRate() {
  constexpr size_t kBytes = size_t{4} << 30;
  WINNOW_ASSIGN_OR_RETURN(const auto memory, device_->Allocate(kBytes));
  WINNOW_ASSIGN_OR_RETURN(const auto sum, device_->Allocate(256));
  const cuda::Stream stream = device_->NewStream();
  table_->elementwise->fill_normal(stream, memory->data(), kBytes / 2, options_.seed, 1.0f);
  std::vector<double> times;
  for (int i = 0; i < 9; ++i) {
    WINNOW_ASSIGN_OR_RETURN(times.emplace_back(), device_->TimeUs(stream, [&](cuda::Stream timed) {
      table_->probe->read(timed, memory->data(), kBytes, static_cast<uint32_t*>(sum->data()));
    }));
  }
  read_bytes_per_us_ = kBytes / Median(std::move(times));
  return absl::OkStatus();
}

std::string EngineBench::Description() const {
  return absl::StrFormat("%s, %s read at %.2f TB/s; %s, weights %s %s, kv %s, context %d; selection %s",
                         device_->info().name, Gb(device_->info().total_bytes), read_bytes_per_us_ / 1e6,
                         options_.model, Gb(weights_->bytes()), DtypeName(options_.weights), DtypeName(options_.kv),
                         plan_.context_tokens, SpecText(plan_.spec));
}

nlohmann::ordered_json EngineBench::DescriptionJson() const {
  return {{"gpu", device_->info().name},
          {"read_bytes_per_us", read_bytes_per_us_},
          {"model", options_.model},
          {"weights", DtypeName(options_.weights)},
          {"weight_bytes_per_step", weights_->bytes_per_step()},
          {"kv", DtypeName(options_.kv)},
          {"context_tokens", plan_.context_tokens},
          {"selection", SpecText(plan_.spec)},
          {"devices", plan_.devices}};
}

DecodeSlotShape EngineBench::SlotShape(DecodeMode mode, int batch) const {
  DecodeSlotShape shape{.layout = config_.kv_layout(options_.kv),
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

GpuCacheSideOptions EngineBench::CacheOptions(int batch) const {
  return {.spec = plan_.spec,
          .config = config_,
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
    const DeviceKvBytes bytes = BytesOf(GpuCacheSide::StoreShape(CacheOptions(batch)));
    const size_t queries = GpuCacheSide::WeightBytes(*table_, CacheOptions(batch));
    store = bytes.rows + bytes.index() + queries;
    absl::StrAppend(&parts, ", rows ", Gb(bytes.rows), ", their index ", Gb(bytes.index()), ", query projections ",
                    Gb(queries));
    if (mode == DecodeMode::kColocated) here += store;
  }
  // What opening the device saw, less what has been taken since.
  const size_t total = device_->info().free_bytes, taken = weights_->bytes() + (size_t{2} << 30);
  const size_t free_bytes = total > taken ? total - taken : 0;
  if (here > free_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("does not fit: ", parts, ", and beside weights of ",
                                                     Gb(weights_->bytes()), " and 2 GiB GPU ", device_->ordinal(),
                                                     " has ", Gb(free_bytes)));
  }
  if (mode == DecodeMode::kDisaggregated && store > cache_device_->info().free_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("does not fit: ", parts, ", and GPU ", cache_device_->ordinal(),
                                                     " has ", Gb(cache_device_->info().free_bytes)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<DecodeSlots>> EngineBench::FilledSlots(DecodeMode mode, int batch) {
  const DecodeSlotShape shape = SlotShape(mode, batch);
  WINNOW_ASSIGN_OR_RETURN(auto slots, DecodeSlots::Create(*device_, shape, options_.seed));
  const cuda::Stream stream = device_->NewStream();
  const size_t row_elements = 2 * static_cast<size_t>(shape.layout.head_dim);
  std::unique_ptr<cuda::DeviceMemory> staging;
  if (shape.layout.dtype != Dtype::kBf16) {
    WINNOW_ASSIGN_OR_RETURN(staging, device_->Allocate(kFillRows * row_elements * DtypeBytes(Dtype::kBf16)));
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
  WINNOW_RETURN_IF_ERROR(device_->Synchronize(stream));
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

absl::StatusOr<double> EngineBench::TimeSteps(cuda::Stream stream, const std::function<absl::Status()>& launch) {
  std::vector<double> times;
  for (int group = 0; group < kGroups + 2; ++group) {
    absl::Status status;
    WINNOW_ASSIGN_OR_RETURN(const double us, device_->TimeUs(stream, [&](cuda::Stream) {
      for (int i = 0; i < kGroupSteps && status.ok(); ++i) status = launch();
    }));
    WINNOW_RETURN_IF_ERROR(status);
    if (group >= 2) times.push_back(us / kGroupSteps);
  }
  return Median(std::move(times));
}

absl::StatusOr<double> EngineBench::TimeGraph(DecodeGraph& graph, int batch, DecodeParts parts) {
  constexpr int kLaunches = 3, kRepeats = 5;
  WINNOW_RETURN_IF_ERROR(SeatRows(graph, batch));
  WINNOW_ASSIGN_OR_RETURN(const auto captured, graph.Capture(DecodeGraph::BucketFor(batch), parts));
  std::vector<double> times;
  for (int i = 0; i < kRepeats + 1; ++i) {
    WINNOW_ASSIGN_OR_RETURN(const double us, device_->TimeUs(graph.stream(), [&](cuda::Stream stream) {
      for (int k = 0; k < kLaunches; ++k) captured->Launch(stream);
    }));
    if (i > 0) times.push_back(us / kLaunches);
  }
  return Median(std::move(times));
}

absl::StatusOr<double> EngineBench::MeasureOverlap(DecodeSlots& slots, const std::function<absl::Status()>& step) {
  const DecodeSlotShape& shape = slots.shape();
  const int settle = plan_.spec.predictor == Predictor::kTemporal ? static_cast<int>(plan_.spec.window) + 2 : 2;
  for (int i = 0; i < settle; ++i) WINNOW_RETURN_IF_ERROR(step());
  const cuda::Stream stream = device_->NewStream();
  std::vector<uint32_t> selections[2];
  for (std::vector<uint32_t>& indices : selections) {
    WINNOW_RETURN_IF_ERROR(step());
    WINNOW_RETURN_IF_ERROR(device_->SynchronizeAll());
    indices.resize(shape.num_lists() * shape.max_budget);
    device_->CopyAsync(indices.data(), slots.inbox().pool_indices, indices.size() * sizeof(uint32_t), stream);
    WINNOW_RETURN_IF_ERROR(device_->Synchronize(stream));
  }
  // A row keeps its pool index while it is resident, and victims are of selections before the last.
  return MeanOverlap(selections[0], selections[1], shape.max_budget, shape.max_budget, shape.pool_slots);
}

absl::Status EngineBench::Tune(DecodeSlots& slots, GpuCacheSide& cache, const std::function<absl::Status()>& step,
                               DecodeMeasurement& result) {
  double low = std::log(0.05), high = std::log(60.0);
  for (int trial = 0; trial < 12; ++trial) {
    const double middle = (low + high) / 2;
    const std::vector<float> bias = QueryBias(config_, std::exp(middle), options_.seed);
    WINNOW_RETURN_IF_ERROR(weights_->SetQueryBias(*device_, device_->NewStream(), bias));
    WINNOW_RETURN_IF_ERROR(cache.SetQueryBias(bias));
    WINNOW_ASSIGN_OR_RETURN(result.overlap, MeasureOverlap(slots, step));
    if (std::abs(result.overlap - options_.overlap) <= kOverlapTolerance / 2) return absl::OkStatus();
    (result.overlap < options_.overlap ? low : high) = middle;
  }
  if (std::abs(result.overlap - options_.overlap) <= kOverlapTolerance) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "adjacent selections overlap by %.3f at the closest, not by --overlap=%.2f", result.overlap, options_.overlap));
}

size_t EngineBench::AttendedBytes(DecodeMode mode, int batch) const {
  const SelectionSpec& spec = plan_.spec;
  const KvLayout layout = config_.kv_layout(options_.kv);
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
  return static_cast<size_t>(batch) * config_.kv_layout(Dtype::kBf16).num_lists() * bytes;
}

double EngineBench::PartFloorUs(DecodePart part, DecodeMode mode, int batch) const {
  const auto matrix = [](const cuda::DeviceMatrix& m) {
    return DtypeBytes(m.dtype, static_cast<size_t>(m.out_features) * m.in_features);
  };
  const DeviceLayerWeights& layer = weights_->layer(0);
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
      return FloorUs(matrix(weights_->lm_head()));
    default:
      return 0;
  }
}

absl::Status EngineBench::BreakDown(DecodeGraph& graph, int batch, DecodeMeasurement& result) {
  WINNOW_ASSIGN_OR_RETURN(const double nothing, TimeGraph(graph, batch, DecodeParts::None()));
  WINNOW_ASSIGN_OR_RETURN(const double all, TimeGraph(graph, batch, DecodeParts::All()));
  result.parts.push_back({.name = "begin step", .alone_us = nothing});
  for (int i = 0; i < kNumDecodeParts; ++i) {
    const auto part = static_cast<DecodePart>(i);
    if (part == DecodePart::kExchange) continue;
    WINNOW_ASSIGN_OR_RETURN(const double alone, TimeGraph(graph, batch, DecodeParts::Only(part)));
    WINNOW_ASSIGN_OR_RETURN(const double others, TimeGraph(graph, batch, DecodeParts::All().Without(part)));
    result.parts.push_back({.name = DecodePartName(part),
                            .alone_us = alone - nothing,
                            .marginal_us = all - others,
                            .floor_us = PartFloorUs(part, result.mode, batch)});
  }
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

absl::StatusOr<DecodeMeasurement> EngineBench::Decode(DecodeMode mode, int batch) {
  WINNOW_RETURN_IF_ERROR(CheckFits(mode, batch));
  DecodeMeasurement result{.mode = mode, .batch = batch, .selects = Selects(mode)};
  WINNOW_ASSIGN_OR_RETURN(const auto slots, FilledSlots(mode, batch));
  DecodeGraphOptions graph_options{.mode = mode};
  std::unique_ptr<GpuCacheSide> cache;
  if (result.selects) {
    cuda::Device& device = mode == DecodeMode::kColocated ? *device_ : *cache_device_;
    WINNOW_ASSIGN_OR_RETURN(cache, GpuCacheSide::Create(*table_, device, *slots, CacheOptions(batch)));
    graph_options.inbox = cache->inbox();
    graph_options.hidden_layers = cache->hidden_layers();
    graph_options.cache = cache.get();
  }
  WINNOW_ASSIGN_OR_RETURN(const auto graph, DecodeGraph::Create(*device_, *layers_, *slots, graph_options));
  WINNOW_RETURN_IF_ERROR(SeatRows(*graph, batch));
  const std::function<absl::Status()> step = [&]() -> absl::Status {
    if (mode == DecodeMode::kDisaggregated) WINNOW_RETURN_IF_ERROR(cache->LaunchPlan());
    if (mode == DecodeMode::kColocated) WINNOW_RETURN_IF_ERROR(cache->CountPlan());
    return graph->Step(batch);
  };
  uint64_t pushed = 0;
  if (cache != nullptr) {
    WINNOW_RETURN_IF_ERROR(Tune(*slots, *cache, step, result));
    WINNOW_ASSIGN_OR_RETURN(pushed, cache->PushedRows());
  }
  WINNOW_ASSIGN_OR_RETURN(result.step_us, TimeSteps(graph->stream(), step));
  WINNOW_RETURN_IF_ERROR(graph->WaitError());
  result.floor_us = FloorUs(weights_->bytes_per_step() + AttendedBytes(mode, batch) +
                            (mode == DecodeMode::kColocated ? ScoredBytes(batch) : 0));
  if (cache != nullptr) {
    WINNOW_ASSIGN_OR_RETURN(const uint64_t pushed_after, cache->PushedRows());
    WINNOW_RETURN_IF_ERROR(cache->WaitError());
    const KvLayout layout = config_.kv_layout(Dtype::kBf16);
    const uint64_t rows = (pushed_after - pushed) / ((kGroups + 2) * kGroupSteps);
    result.pushed_bytes = rows * layout.row_bytes();
    result.resident =
        1 - static_cast<double>(rows) /
                static_cast<double>(static_cast<size_t>(batch) * layout.num_lists() * plan_.spec.budget_tokens);
    if (options_.breakdown) {
      WINNOW_ASSIGN_OR_RETURN(const double alone,
                              TimeGraph(*graph, batch, DecodeParts::All().Without(DecodePart::kExchange)));
      result.parts.push_back({.name = "exchange", .marginal_us = result.step_us - alone});
      WINNOW_RETURN_IF_ERROR(BreakDownCache(*cache, result));
    }
  } else if (options_.breakdown) {
    WINNOW_RETURN_IF_ERROR(BreakDown(*graph, batch, result));
  }
  WINNOW_RETURN_IF_ERROR(device_->SynchronizeAll());
  return result;
}

absl::StatusOr<double> EngineBench::GemmRate() {
  constexpr size_t kSize = 8192, kBytes = kSize * kSize * 2;
  WINNOW_ASSIGN_OR_RETURN(const auto memory, device_->Allocate(3 * kBytes));
  WINNOW_ASSIGN_OR_RETURN(const auto workspace,
                          device_->Allocate(std::max<size_t>(256, table_->matmul->prefill_workspace_bytes(kSize))));
  auto* const data = static_cast<std::byte*>(memory->data());
  const cuda::Stream stream = device_->NewStream();
  table_->elementwise->fill_normal(stream, data, 2 * kSize * kSize, options_.seed, 1.0f);
  const auto plans = table_->matmul->open_prefill_plans();
  std::vector<double> times;
  for (int i = 0; i < 12; ++i) {
    WINNOW_ASSIGN_OR_RETURN(const double us, device_->TimeUs(stream, [&](cuda::Stream timed) {
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
  WINNOW_ASSIGN_OR_RETURN(const auto prefill, DevicePrefill::Create(*device_, *layers_, tokens));
  std::vector<uint32_t> ids(tokens);
  std::mt19937_64 random(options_.seed);
  for (uint32_t& id : ids) id = static_cast<uint32_t>(random() % config_.vocab_size);
  WINNOW_ASSIGN_OR_RETURN(const auto device_ids, device_->Allocate(tokens * sizeof(uint32_t)));
  const cuda::Stream stream = device_->NewStream(true);
  device_->CopyAsync(device_ids->data(), ids.data(), tokens * sizeof(uint32_t), stream);
  WINNOW_RETURN_IF_ERROR(device_->Synchronize(stream));
  std::vector<double> times;
  for (int i = 0; i < 4; ++i) {
    WINNOW_ASSIGN_OR_RETURN(const double us, device_->TimeUs(stream, [&](cuda::Stream timed) {
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
