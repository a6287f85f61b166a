// Decode graphs and prefill with the demo model, against its golden data and against each other.
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "cache_rank/select/device/colocated_selection.h"
#include "cache_rank/select/device/device_plan.h"
#include "cache_rank/select/device/device_selection.h"
#include "cache_rank/store/device/device_kv_store.h"
#include "common/base/status.h"
#include "common/model/rope.h"
#include "common/selection/presets.h"
#include "model/device/decode_graph.h"
#include "model/device/device_prefill.h"
#include "model/device/tensor_parallel.h"
#include "model/weights/device_weights.h"
#include "tools/bench/gpu/sections.h"

ABSL_FLAG(std::string, demo_model, "deploy/models/demo", "folder of the demo model, for the section engine");
ABSL_FLAG(std::string, demo_golden, "tests/testdata/demo.golden.json", "its golden data");

namespace winnow {
namespace {

constexpr int kRows = 16;
constexpr uint32_t kMaxTokens = 8192;
constexpr int kChunk = 1024;
constexpr int kSteps = 48;
// Weights and KV are those of the reference; activations that enter a matrix are rounded to bf16, which keeps 8 bits: a
// logit of 20 is off by up to 0.08 for the last rounding alone. Twice that, for the eight layers before.
constexpr double kLogitTolerance = 0.16;

struct GoldenCase {
  std::string name;
  std::vector<uint32_t> prompt, greedy;
  std::vector<double> margin, top_logits;
  std::vector<uint32_t> top_ids;
};

std::vector<GoldenCase> LoadGolden() {
  std::ifstream in(absl::GetFlag(FLAGS_demo_golden));
  std::vector<GoldenCase> cases;
  if (!in.is_open()) return cases;
  const nlohmann::json golden = nlohmann::json::parse(in);
  for (const nlohmann::json& item : golden.at("cases")) {
    cases.push_back({item.at("name"), item.at("prompt"), item.at("greedy"), item.at("margin"), item.at("top_logits"),
                     item.at("top_ids")});
  }
  return cases;
}

// The demo model on the GPU, with everything that decodes and prefills it.
class DemoEngine {
 public:
  static absl::StatusOr<std::unique_ptr<DemoEngine>> Load(GpuContext& gpu) {
    const std::string directory = absl::GetFlag(FLAGS_demo_model);
    std::unique_ptr<DemoEngine> engine(new DemoEngine(gpu));
    WINNOW_ASSIGN_OR_RETURN(engine->config_, LoadModelConfig(directory));
    WINNOW_ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(directory));
    WINNOW_ASSIGN_OR_RETURN(engine->weights_, DeviceWeights::Load(gpu.table, gpu.device, *checkpoint, engine->config_));
    const DeviceLayerOptions options{.max_prefill_rows = kChunk,
                                     .max_list_rows = kMaxTokens,
                                     .lists_per_kv_head = engine->config_.kv_layout(Dtype::kBf16).group_size()};
    WINNOW_ASSIGN_OR_RETURN(engine->layers_, DeviceLayers::Create(gpu.table, gpu.device, *engine->weights_, options));
    WINNOW_ASSIGN_OR_RETURN(engine->prefill_, DevicePrefill::Create(gpu.device, *engine->layers_, kMaxTokens));
    return engine;
  }

  DecodeSlotShape DenseShape() const {
    return {.layout = config_.kv_layout(Dtype::kBf16),
            .max_rows = kRows,
            .hidden_size = config_.hidden_size,
            .dense_tokens = kMaxTokens};
  }

  struct Answer {
    std::vector<float> first_logits;            // of the first sampled token
    std::vector<float> last_logits;             // after the last step
    std::vector<std::vector<uint32_t>> tokens;  // [row][step]
  };
  // Greedy answers of `prompts`, in rows 0 .. n - 1 of a step of `bucket` rows. `prepare` says which rows of the prompt
  // go where, before they are copied; the recent part begins at `recent_begin`.
  absl::StatusOr<Answer> Decode(DecodeSlots& slots, const std::vector<std::vector<uint32_t>>& prompts, int bucket,
                                uint32_t recent_begin) {
    WINNOW_ASSIGN_OR_RETURN(
        const auto graph,
        DecodeGraph::Create(gpu_.device, *layers_, slots,
                            {.mode = slots.shape().is_dense() ? DecodeMode::kDense : DecodeMode::kFixed,
                             .window = device::RecentWindow::kGrowing}));
    std::vector<std::optional<DecodeRow>> rows;
    for (size_t i = 0; i < prompts.size(); ++i) {
      const auto length = static_cast<uint32_t>(prompts[i].size());
      WINNOW_RETURN_IF_ERROR(prefill_->Run(gpu_.stream, {prompts[i].data(), length - 1}, kChunk));
      prefill_->FillSlots(gpu_.stream, slots, static_cast<int>(i), length - 1, recent_begin);
      WINNOW_RETURN_IF_ERROR(gpu_.device.Synchronize(gpu_.stream));
      rows.push_back(DecodeRow{.token_id = prompts[i].back(), .position = length - 1, .sampling = {.temperature = 0}});
    }
    WINNOW_RETURN_IF_ERROR(graph->SetRows(rows));
    WINNOW_ASSIGN_OR_RETURN(const auto step, graph->Capture(bucket));
    const int num_rows = static_cast<int>(rows.size());
    Answer answer;
    step->Launch(graph->stream());
    WINNOW_ASSIGN_OR_RETURN(answer.first_logits, graph->LastLogits(num_rows));
    for (int i = 1; i < kSteps; ++i) step->Launch(graph->stream());
    WINNOW_ASSIGN_OR_RETURN(answer.last_logits, graph->LastLogits(num_rows));
    // The tokens that entered steps 2 .. kSteps, and the one that enters the next.
    WINNOW_ASSIGN_OR_RETURN(const std::vector<uint32_t> log, graph->TokensOfLastSteps(kSteps - 1));
    WINNOW_ASSIGN_OR_RETURN(const std::vector<uint32_t> next, graph->NextTokens());
    for (int row = 0; row < num_rows; ++row) {
      std::vector<uint32_t>& tokens = answer.tokens.emplace_back();
      for (int i = 0; i + 1 < kSteps; ++i) tokens.push_back(log[static_cast<size_t>(i) * kRows + row]);
      tokens.push_back(next[row]);
    }
    return answer;
  }

  // Greedy answer of a prompt whose KV is with a cache rank on the same GPU, which selects with `spec`.
  absl::StatusOr<Answer> DecodeWithCache(const SelectionSpec& spec, const std::vector<uint32_t>& prompt, RowTier rows) {
    const auto length = static_cast<uint32_t>(prompt.size()), known = length - 1;
    const KvLayout layout = config_.kv_layout(Dtype::kBf16);
    const bool in_place = rows == RowTier::kInPlace;
    const DecodeSlotShape shape{.layout = layout,
                                .max_rows = 1,
                                .hidden_size = config_.hidden_size,
                                .dense_tokens = in_place ? length + kSteps : 0,
                                .sinks = spec.sink_tokens,
                                .pool_slots = in_place ? 0 : spec.budget_tokens,
                                .max_budget = spec.budget_tokens,
                                .recent_tokens = spec.recent_tokens,
                                .lists_per_kv_head = ListsPerKvHead(spec, layout.group_size()),
                                .reuse_interval = spec.reuse_interval};
    WINNOW_ASSIGN_OR_RETURN(const auto slots, DecodeSlots::Create(gpu_.device, shape, 11));
    // Chunks write rows by position where the cache rank takes them from: exactly as many as there are.
    WINNOW_ASSIGN_OR_RETURN(const auto prefill, DevicePrefill::Create(gpu_.device, *layers_, known));
    WINNOW_RETURN_IF_ERROR(prefill->Run(gpu_.stream, {prompt.data(), known}, kChunk));
    DeviceKvShape store_shape = DeviceKvShapeFor(spec, layout, 1, length + kSteps, length + kSteps, rows);
    if (in_place) {
      store_shape.num_blocks = shape.num_slots() / kBlockTokens;
    } else {
      store_shape.pool_slots = spec.budget_tokens;
      const uint32_t recent = RecentStart(known, spec.recent_tokens, spec.sink_tokens, kBlockTokens);
      prefill->FillSlots(gpu_.stream, *slots, 0, known, recent);
    }
    WINNOW_ASSIGN_OR_RETURN(const auto store, DeviceKvStore::Create(&gpu_.table, &gpu_.device, store_shape,
                                                                    in_place ? slots->slot_pool() : nullptr));
    WINNOW_ASSIGN_OR_RETURN(const auto plan, DevicePlan::Create(&gpu_.table, &gpu_.device, store.get(), spec, 1));
    const RopeTable rope = ComputeRope(config_.rope, config_.head_dim);
    WINNOW_ASSIGN_OR_RETURN(const auto projections, LoadProjections());
    const DeviceSelection::Model model{.rope = {rope.inv_freq, rope.attention_factor},
                                       .attention_scale = 1 / std::sqrt(static_cast<float>(config_.head_dim)),
                                       .queries = projections.get()};
    WINNOW_ASSIGN_OR_RETURN(const auto selection,
                            DeviceSelection::Create(&gpu_.table, &gpu_.device, store.get(), plan.get(), model,
                                                    shape.exchange(), in_place ? &slots->inbox() : nullptr));
    WINNOW_ASSIGN_OR_RETURN(const uint32_t sequence, Open(*store, *slots, length + kSteps));
    for (int layer = 0; layer < config_.num_layers; ++layer) {
      WINNOW_RETURN_IF_ERROR(store->AppendRange(sequence, layer, 0, known, prefill->rows(layer), gpu_.stream));
    }
    std::vector<uint32_t> pages;
    for (size_t list = 0; list < layout.num_lists() && !in_place; ++list) {
      const auto first = slots->host_pages().begin() + static_cast<int64_t>(list * shape.pages_per_list());
      pages.insert(pages.end(), first, first + shape.ring_base() / kSlotPageTokens);
    }
    if (!in_place) WINNOW_RETURN_IF_ERROR(store->SetPeerPages(sequence, pages, gpu_.stream));
    const std::vector<uint32_t> pool_bases(in_place ? 0 : layout.num_lists(), shape.pool_base());
    plan->SetRow(0, sequence, known, {.slot_pool = slots->slot_pool(), .pool_bases = pool_bases}, known);
    plan->Upload(gpu_.stream);
    WINNOW_RETURN_IF_ERROR(gpu_.device.Synchronize(gpu_.stream));

    WINNOW_ASSIGN_OR_RETURN(const auto inbox_memory, gpu_.device.Allocate(CacheInboxBytes(shape.exchange())));
    const device::CacheInbox inbox = CacheInboxAt(shape.exchange(), inbox_memory->data());
    ColocatedSelection cache(gpu_.device, *plan, *selection, {.num_rows = 1, .max_keys = store_shape.max_positions},
                             inbox, slots->inbox(), config_.num_layers);
    WINNOW_ASSIGN_OR_RETURN(
        const auto graph,
        DecodeGraph::Create(
            gpu_.device, *layers_, *slots,
            {.mode = DecodeMode::kColocated, .inbox = inbox, .hidden_layers = cache.hidden_layers(), .cache = &cache}));
    const std::optional<DecodeRow> row =
        DecodeRow{.token_id = prompt.back(), .position = known, .sampling = {.temperature = 0}, .prompt_tokens = known};
    WINNOW_RETURN_IF_ERROR(graph->SetRows({&row, 1}));
    for (int i = 0; i < kSteps; ++i) {
      WINNOW_RETURN_IF_ERROR(cache.CountPlan());
      WINNOW_RETURN_IF_ERROR(graph->Step(1));
    }
    Answer answer;
    WINNOW_ASSIGN_OR_RETURN(answer.last_logits, graph->LastLogits(1));
    return answer;
  }

  // Logits behind the last token of a prompt that goes through decode steps alone, one token at a time.
  absl::StatusOr<std::vector<float>> LogitsByDecoding(DecodeSlots& slots, const std::vector<uint32_t>& prompt) {
    WINNOW_ASSIGN_OR_RETURN(const auto graph, DecodeGraph::Create(gpu_.device, *layers_, slots, {}));
    for (uint32_t i = 0; i < prompt.size(); ++i) {
      const std::optional<DecodeRow> row =
          DecodeRow{.token_id = prompt[i], .position = i, .sampling = {.temperature = 0}};
      WINNOW_RETURN_IF_ERROR(graph->SetRows({&row, 1}));
      WINNOW_RETURN_IF_ERROR(graph->Step(1));
    }
    return graph->LastLogits(1);
  }

  const ModelConfig& config() const { return config_; }

 private:
  explicit DemoEngine(GpuContext& gpu) : gpu_(gpu) {}
  absl::StatusOr<uint32_t> Open(DeviceKvStore& store, const DecodeSlots& slots, uint32_t positions) {
    if (store.shape().rows != RowTier::kInPlace) return store.Open(positions, gpu_.stream);
    std::vector<uint32_t> blocks;
    const auto per_list = static_cast<int64_t>(store.shape().BlocksOf(positions) / store.shape().layout.num_lists());
    for (size_t list = 0; list < store.shape().layout.num_lists(); ++list) {
      const std::vector<uint32_t> of_list = slots.BlocksOf(list);
      blocks.insert(blocks.end(), of_list.begin(), of_list.begin() + per_list);
    }
    WINNOW_RETURN_IF_ERROR(store.OpenAt(0, positions, blocks, store.shape().own_index(), gpu_.stream));
    return 0;
  }
  absl::StatusOr<std::unique_ptr<DeviceWeights>> LoadProjections() {
    WINNOW_ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(absl::GetFlag(FLAGS_demo_model)));
    return DeviceWeights::Load(gpu_.table, gpu_.device, *checkpoint, config_,
                               {.dtype = Dtype::kBf16, .shard = {}, .parts = WeightParts::kQueryProjections});
  }
  GpuContext& gpu_;
  ModelConfig config_;
  std::unique_ptr<DeviceWeights> weights_;
  std::unique_ptr<DeviceLayers> layers_;
  std::unique_ptr<DevicePrefill> prefill_;
};

// The margin at the first step at which the ids differ, 0 where they are equal as long as the reference is decided: by
// more than both logits may be off.
double WrongMargin(const GoldenCase& golden, const std::vector<uint32_t>& tokens) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] != golden.greedy[i]) return golden.margin[i] >= 2 * kLogitTolerance ? golden.margin[i] : 0;
    // An undecided step may have gone either way; here it went the reference's.
  }
  return 0;
}

double LargestDifference(std::span<const float> a, std::span<const float> b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(static_cast<double>(a[i]) - b[i]);
    if (!(difference <= largest)) largest = difference;  // NaN stays
  }
  return largest;
}

using Prompts = std::vector<std::vector<uint32_t>>;

absl::Status CheckGolden(GpuContext& gpu, DemoEngine& engine, DecodeSlots& dense,
                         const std::vector<GoldenCase>& cases) {
  Prompts prompts;
  for (const GoldenCase& golden : cases) prompts.push_back(golden.prompt);
  WINNOW_ASSIGN_OR_RETURN(const DemoEngine::Answer together, engine.Decode(dense, prompts, kRows, 0));
  const size_t vocab = engine.config().vocab_size;
  int equal = 0;
  for (size_t c = 0; c < cases.size(); ++c) {
    const std::string name = absl::StrCat("engine dense ", cases[c].name);
    double error = 0;
    for (size_t i = 0; i < cases[c].top_ids.size(); ++i) {
      const double logit = together.first_logits[c * vocab + cases[c].top_ids[i]];
      const double difference = std::abs(logit - cases[c].top_logits[i]);
      if (!(difference <= error)) error = difference;
    }
    gpu.report.Check(name + " logits", error, kLogitTolerance);
    gpu.report.Check(name + " ids", WrongMargin(cases[c], together.tokens[c]), 0);
    equal += std::equal(together.tokens[c].begin(), together.tokens[c].end(), cases[c].greedy.begin());
  }
  gpu.report.Note("engine, dense", absl::StrCat(equal, " of ", cases.size(), " golden answers equal over all tokens"));
  WINNOW_ASSIGN_OR_RETURN(const std::vector<float> decoded, engine.LogitsByDecoding(dense, cases[2].prompt));
  gpu.report.Check("engine prefill and decode",
                   LargestDifference(decoded, std::span(together.first_logits).subspan(2 * vocab, vocab)),
                   kLogitTolerance);
  // A row's bits are its own, whatever the bucket and the other rows: the last logits follow from all 48 steps.
  for (const size_t c : {size_t{0}, size_t{5}, size_t{9}}) {
    for (const int bucket : {1, 4}) {
      WINNOW_ASSIGN_OR_RETURN(const DemoEngine::Answer alone, engine.Decode(dense, {prompts[c]}, bucket, 0));
      const std::span<const float> row = std::span(together.last_logits).subspan(c * vocab, vocab);
      gpu.report.Check(absl::StrCat("engine row ", c, " in buckets 16 and ", bucket),
                       LargestDifference(alone.last_logits, row), 0);
    }
  }
  return absl::OkStatus();
}

// A selection of everything between sinks and recent window attends to what dense does, in the same order.
absl::Status CheckFixedCoversContext(GpuContext& gpu, DemoEngine& engine, DecodeSlots& dense,
                                     const std::vector<uint32_t>& prompt) {
  const auto recent_begin = static_cast<uint32_t>(prompt.size() * 3 / 4);
  DecodeSlotShape shape = engine.DenseShape();
  shape.dense_tokens = 0;
  shape.sinks = 5;
  shape.max_budget = recent_begin - shape.sinks;
  shape.pool_slots = shape.max_budget + 77;
  shape.ring_tokens = static_cast<uint32_t>(prompt.size()) - recent_begin + kSteps;
  WINNOW_ASSIGN_OR_RETURN(const auto slots, DecodeSlots::Create(gpu.device, shape, 7));
  WINNOW_RETURN_IF_ERROR(slots->SelectRange(shape.sinks, shape.max_budget, gpu.random()));
  WINNOW_RETURN_IF_ERROR(slots->SetRecentBegin(recent_begin));
  WINNOW_ASSIGN_OR_RETURN(const DemoEngine::Answer fixed, engine.Decode(*slots, {prompt}, 2, recent_begin));
  WINNOW_ASSIGN_OR_RETURN(const DemoEngine::Answer all, engine.Decode(dense, {prompt}, 2, 0));
  gpu.report.Check("engine fixed selection of everything is dense",
                   LargestDifference(fixed.last_logits, all.last_logits), 0);
  return absl::OkStatus();
}

// Logits behind a prompt that two GPUs decode together, token by token.
absl::StatusOr<std::vector<float>> LogitsOfTwo(GpuContext& gpu, const std::vector<uint32_t>& prompt, int rank_to_read) {
  struct Rank {
    std::unique_ptr<device::Device> opened;
    device::Device* device = nullptr;
    std::unique_ptr<DeviceWeights> weights;
    std::unique_ptr<DeviceLayers> layers;
    std::unique_ptr<DecodeSlots> slots;
    std::unique_ptr<TensorParallelMemory> memory;
    std::unique_ptr<DecodeGraph> graph;
  };
  const std::string directory = absl::GetFlag(FLAGS_demo_model);
  WINNOW_ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(directory));
  WINNOW_ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(directory));
  std::array<Rank, 2> ranks;
  const int peer = gpu.device.ordinal() == 0 ? 1 : 0;
  ranks[0].device = &gpu.device;
  WINNOW_ASSIGN_OR_RETURN(ranks[1].opened, gpu.table.open_device(peer));
  ranks[1].device = ranks[1].opened.get();
  WINNOW_RETURN_IF_ERROR(gpu.device.EnablePeerAccess(peer));
  WINNOW_RETURN_IF_ERROR(ranks[1].device->EnablePeerAccess(gpu.device.ordinal()));
  TensorParallelGroup group{.num_ranks = 2};
  for (int r : {0, 1}) {
    Rank& rank = ranks[r];
    WINNOW_ASSIGN_OR_RETURN(rank.weights,
                            DeviceWeights::Load(gpu.table, *rank.device, *checkpoint, config, {.shard = {r, 2}}));
    WINNOW_ASSIGN_OR_RETURN(
        rank.layers, DeviceLayers::Create(gpu.table, *rank.device, *rank.weights, {.max_list_rows = kMaxTokens}));
    const DecodeSlotShape shape{.layout = rank.weights->config().kv_layout(Dtype::kBf16),
                                .max_rows = kRows,
                                .hidden_size = config.hidden_size,
                                .dense_tokens = kMaxTokens};
    WINNOW_ASSIGN_OR_RETURN(rank.slots, DecodeSlots::Create(*rank.device, shape, 3));
    WINNOW_ASSIGN_OR_RETURN(rank.memory, TensorParallelMemory::Create(*rank.device, *rank.layers, 2, kRows));
    group.boxes[r] = rank.memory->box();
  }
  for (int r : {0, 1}) {
    group.rank = r;
    WINNOW_ASSIGN_OR_RETURN(ranks[r].graph,
                            DecodeGraph::Create(*ranks[r].device, *ranks[r].layers, *ranks[r].slots, {.group = group}));
    WINNOW_RETURN_IF_ERROR(ranks[r].graph->Prepare(1));
  }
  for (uint32_t i = 0; i < prompt.size(); ++i) {
    const std::optional<DecodeRow> row = DecodeRow{.token_id = prompt[i], .position = i};
    for (Rank& rank : ranks) WINNOW_RETURN_IF_ERROR(rank.graph->SetRows({&row, 1}));
    for (Rank& rank : ranks) WINNOW_RETURN_IF_ERROR(rank.graph->Step(1));
  }
  WINNOW_RETURN_IF_ERROR(ranks[rank_to_read].graph->WaitError());
  WINNOW_ASSIGN_OR_RETURN(std::vector<float> logits, ranks[rank_to_read].graph->LastLogits(1));
  for (Rank& rank : ranks) WINNOW_RETURN_IF_ERROR(rank.device->SynchronizeAll());
  return logits;
}

absl::Status CheckTensorParallel(GpuContext& gpu, DemoEngine& engine, DecodeSlots& dense, const GoldenCase& golden) {
  if (gpu.table.device_count() < 2) {
    gpu.report.Note("engine, tensor parallel", "not checked: one GPU");
    return absl::OkStatus();
  }
  WINNOW_ASSIGN_OR_RETURN(const std::vector<float> alone, engine.LogitsByDecoding(dense, golden.prompt));
  for (const int rank : {0, 1}) {
    WINNOW_ASSIGN_OR_RETURN(const std::vector<float> logits, LogitsOfTwo(gpu, golden.prompt, rank));
    gpu.report.Check(absl::StrCat("engine on two GPUs, logits of rank ", rank), LargestDifference(logits, alone),
                     kLogitTolerance);
  }
  return absl::OkStatus();
}

// Rows go to the cache rank, are selected all of them, and come back: attention reads what dense attention does, in the
// same order, though most of it has left the rank and returned.
absl::Status CheckCacheCoversContext(GpuContext& gpu, DemoEngine& engine, DecodeSlots& dense,
                                     const std::vector<uint32_t>& prompt) {
  WINNOW_ASSIGN_OR_RETURN(const DemoEngine::Answer all, engine.Decode(dense, {prompt}, 1, 0));
  for (const Predictor predictor : {Predictor::kExact, Predictor::kDepth}) {
    WINNOW_ASSIGN_OR_RETURN(SelectionSpec spec, FindPreset("depth"));
    spec.predictor = predictor;
    spec.budget_tokens = static_cast<uint32_t>(prompt.size()) + kSteps;
    spec.pool_factor = 1;
    WINNOW_ASSIGN_OR_RETURN(const DemoEngine::Answer selected, engine.DecodeWithCache(spec, prompt, RowTier::kDevice));
    gpu.report.Check(absl::StrCat("engine with a cache rank that selects everything, ",
                                  predictor == Predictor::kExact ? "exact" : "depth"),
                     LargestDifference(selected.last_logits, all.last_logits), 0);
  }
  // The same where attention reads the rows where they lie, by every scorer. The prompt is shorter than what lserve
  // attends to anyway, so that its sinks and window shrink.
  for (const char* preset : {"exact-token", "winnow", "async-token", "quest", "sparseserve", "psa", "lserve"}) {
    WINNOW_ASSIGN_OR_RETURN(SelectionSpec spec, FindPreset(preset));
    spec.budget_tokens = static_cast<uint32_t>(prompt.size()) + kSteps;
    spec.sink_tokens = 4;
    spec.recent_tokens = 64;
    spec.profile_use = ProfileUse::kNone;
    WINNOW_ASSIGN_OR_RETURN(const DemoEngine::Answer selected, engine.DecodeWithCache(spec, prompt, RowTier::kInPlace));
    // A list for each query head is read by another kernel, which adds up in another order.
    gpu.report.Check(absl::StrCat("engine that attends in place to everything, ", preset),
                     LargestDifference(selected.last_logits, all.last_logits),
                     spec.list_per == ListPer::kQueryHead ? kLogitTolerance : 0);
  }
  return absl::OkStatus();
}

absl::Status CheckAll(GpuContext& gpu) {
  const std::vector<GoldenCase> cases = LoadGolden();
  if (cases.empty() || !std::filesystem::exists(absl::GetFlag(FLAGS_demo_model))) {
    gpu.report.Note("engine", "not checked: --demo_model or --demo_golden is not there");
    return absl::OkStatus();
  }
  WINNOW_ASSIGN_OR_RETURN(const auto engine, DemoEngine::Load(gpu));
  WINNOW_ASSIGN_OR_RETURN(const auto dense, DecodeSlots::Create(gpu.device, engine->DenseShape(), 3));
  if (!gpu.few_small) WINNOW_RETURN_IF_ERROR(CheckGolden(gpu, *engine, *dense, cases));
  WINNOW_RETURN_IF_ERROR(CheckFixedCoversContext(gpu, *engine, *dense, cases[7].prompt));
  WINNOW_RETURN_IF_ERROR(CheckCacheCoversContext(gpu, *engine, *dense, cases[4].prompt));
  if (gpu.few_small) return absl::OkStatus();
  return CheckTensorParallel(gpu, *engine, *dense, cases[2]);
}

void Check(GpuContext& gpu) {
  if (const absl::Status status = CheckAll(gpu); !status.ok()) {
    gpu.report.Fail("engine", std::string(status.message()));
  }
}
void Bench(GpuContext&) {}

}  // namespace

GpuSection EngineSection() {
  return {"engine", Check, Bench};
}

}  // namespace winnow
