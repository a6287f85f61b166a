// Sums over ranks by themselves; the forward pass that serves, by two GPUs that hold the model together, against that
// of one GPU; clusters of the demo model whose inference rank has two GPUs, against the golden data; and times on one
// GPU and on two, without cache ranks and with nothing to send: prompts in chunks, steps over lists of slots.
//
// One GPU cannot play two here: kernels that wait for the other's sums would keep it from running them.
#include <algorithm>
#include <chrono>
#include <cmath>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "common/model/synthetic_models.h"
#include "inference_rank/backend/device_backend.h"
#include "inference_rank/memory/prefill_arena.h"
#include "inference_rank/memory/working_set.h"
#include "tests/e2e/golden.h"
#include "tools/bench/gpu/checks/all_reduce_check.h"
#include "tools/bench/gpu/checks/chunk_sums_check.h"
#include "tools/bench/gpu/sections.h"
#include "tools/bench/gpu/serving/serve_checks.h"

ABSL_DECLARE_FLAG(std::string, serve_model);
ABSL_DECLARE_FLAG(std::string, demo_model);
ABSL_DECLARE_FLAG(std::string, demo_golden);
ABSL_DECLARE_FLAG(int, device);

namespace winnow {
namespace {

constexpr uint32_t kPrompt = 8192;
constexpr uint32_t kAttendedRows = 2112;  // of a step: a budget of 2,048 with its sinks and recent rows
constexpr int kChunk = 2048, kSteps = 24;

// Keeps rows where the forward pass writes them.
class SilentPrefill final : public PrefillKv {
 public:
  explicit SilentPrefill(const PrefillArena& arena) : arena_(arena) {}
  Rows Destination(int layer, int first_kv_head) override {
    return {.kv = arena_.row(layer, first_kv_head, 0), .head_stride = arena_.prompt_tokens()};
  }
  int QueriesWanted(int) const override { return 0; }
  Rows Publish(int layer, const std::byte*, const float*) override { return Destination(layer, 0); }

 private:
  const PrefillArena& arena_;
};

class SilentDecode final : public DecodeKv {
 public:
  SilentDecode(const KvLayout& layout, std::span<WorkingSet> sets, uint32_t position, size_t most_rows = SIZE_MAX)
      : layout_(layout), sets_(sets), position_(position), most_rows_(most_rows) {}
  int Lookahead() const override { return 0; }
  bool NeedsHidden(int) const override { return false; }
  bool SlotsComeFirst(int) const override { return true; }
  void PlacesOfRows(HeadRange heads, std::span<void*> places) const override {
    size_t at = 0;
    for (int layer = 0; layer < layout_.num_layers; ++layer) {
      for (const WorkingSet& set : sets_) {
        for (int i = 0; i < heads.count; ++i) places[at++] = set.PlaceOfRow(layer, heads.first + i, position_);
      }
    }
  }
  void Publish(const DecodeLayerOutput&) override {}
  void AwaitSlots(int layer, SlotLists& lists) override {
    for (const WorkingSet& set : sets_) {
      for (int head = 0; head < layout_.num_kv_heads; ++head) {
        const std::span<const uint32_t> slots = set.Slots(layer, head);
        lists.Add(slots.first(std::min<size_t>(slots.size(), most_rows_)), layout_.group_size());
      }
    }
  }

 private:
  const KvLayout& layout_;
  const std::span<WorkingSet> sets_;
  const uint32_t position_;
  const size_t most_rows_;
};

double Milliseconds(std::chrono::steady_clock::duration time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

double MedianOf(std::vector<double> times) {
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
  return times[times.size() / 2];
}

class ServingPass {
 public:
  static absl::StatusOr<std::unique_ptr<ServingPass>> Create(const std::string& model, const std::vector<int>& gpus,
                                                             uint32_t max_context, uint32_t max_running) {
    auto pass = std::unique_ptr<ServingPass>(new ServingPass());
    WINNOW_ASSIGN_OR_RETURN(pass->config_, ModelConfigOf(model));
    pass->layout_ = pass->config_.kv_layout(Dtype::kBf16);
    BackendOptions options;
    options.config = &pass->config_;
    if (!IsSyntheticModel(model)) {
      WINNOW_ASSIGN_OR_RETURN(options.checkpoint, Checkpoint::Open(model));
    }
    options.max_context_tokens = max_context;
    options.prefill_chunk_tokens = kChunk;
    options.needs = {.layout = pass->layout_,
                     .selection = pass->spec_,
                     .max_context_tokens = max_context,
                     .max_running = max_running,
                     .prefill_memory_bytes = PrefillSizing::AllKvBytes(pass->layout_, max_context) / gpus.size()};
    options.model_name = model;
    WINNOW_ASSIGN_OR_RETURN(pass->backend_, NewDeviceBackend(options, gpus));
    WINNOW_ASSIGN_OR_RETURN(SlotPool slots, pass->backend_->NewSlotPool());
    pass->slots_.emplace(std::move(slots));
    return pass;
  }

  // After the prompt, and after each of `steps` further tokens, which follow it in `tokens`.
  absl::StatusOr<std::vector<float>> Logits(const std::vector<uint32_t>& tokens, uint32_t steps) {
    const auto prompt = static_cast<uint32_t>(tokens.size()) - steps;
    std::vector<float> all;
    const auto take = [&](std::span<const float> logits) { all.insert(all.end(), logits.begin(), logits.end()); };
    std::vector<WorkingSet> sets;
    WINNOW_ASSIGN_OR_RETURN(WorkingSet set, WorkingSet::Create(*slots_, layout_, spec_, prompt + steps, prompt));
    {
      WINNOW_ASSIGN_OR_RETURN(const PrefillArena arena,
                              PrefillArena::CreateIn(*backend_->prefill_region(), layout_, prompt));
      SilentPrefill kv(arena);
      for (uint32_t first = 0; first < prompt;) {
        const bool last = first + 1 == prompt;
        const uint32_t count = last ? 1 : std::min<uint32_t>(kChunk, prompt - 1 - first);
        take(backend_->forward().Prefill({tokens.data() + first, count}, first, last, kv));
        first += count;
      }
      for (int layer = 0; layer < layout_.num_layers; ++layer) {
        for (int head = 0; head < layout_.num_kv_heads; ++head) {
          set.LoadRows(layer, head, 0, prompt, arena.row(layer, head, 0), prompt, WorkingSet::RowsIn::kSlotMemory);
        }
      }
    }
    set.FinishLoad(prompt);
    sets.push_back(std::move(set));
    for (uint32_t position = prompt; position < prompt + steps; ++position) {
      sets[0].Advance(position);
      SilentDecode kv(layout_, sets, position);
      take(backend_->forward().DecodeByLayer({&tokens[position], 1}, {&position, 1}, kv));
    }
    WINNOW_RETURN_IF_ERROR(backend_->forward().status());
    return all;
  }

  absl::StatusOr<double> PrefillMs() {
    WINNOW_ASSIGN_OR_RETURN(const PrefillArena arena,
                            PrefillArena::CreateIn(*backend_->prefill_region(), layout_, kPrompt + 1));
    SilentPrefill kv(arena);
    const std::vector<uint32_t> tokens(kChunk, 17);
    std::vector<double> times;
    for (int i = 0; i < 4; ++i) {
      const auto start = std::chrono::steady_clock::now();
      for (uint32_t first = 0; first < kPrompt; first += kChunk) {
        backend_->forward().Prefill(tokens, first, /*last=*/false, kv);
      }
      if (i > 0) times.push_back(Milliseconds(std::chrono::steady_clock::now() - start));
    }
    WINNOW_RETURN_IF_ERROR(backend_->forward().status());
    return MedianOf(std::move(times));
  }

  absl::StatusOr<double> StepMs(int batch) {
    std::vector<WorkingSet> sets;
    for (int i = 0; i < batch; ++i) {
      WINNOW_ASSIGN_OR_RETURN(WorkingSet set, WorkingSet::Create(*slots_, layout_, spec_, 2 * kPrompt, kPrompt));
      set.FinishLoad(kPrompt);
      sets.push_back(std::move(set));
    }
    std::vector<double> times;
    const std::vector<std::optional<TokenDraw>> draws(batch, TokenDraw());
    for (uint32_t position = kPrompt; position < kPrompt + kSteps; ++position) {
      for (WorkingSet& set : sets) set.Advance(position);
      SilentDecode kv(layout_, sets, position, kAttendedRows);
      backend_->forward().PlanDraws(draws);
      const auto start = std::chrono::steady_clock::now();
      backend_->forward().DecodeByLayer(std::vector<uint32_t>(batch, 17), std::vector<uint32_t>(batch, position), kv);
      if (position > kPrompt + 3) times.push_back(Milliseconds(std::chrono::steady_clock::now() - start));
    }
    WINNOW_RETURN_IF_ERROR(backend_->forward().status());
    return MedianOf(std::move(times));
  }

 private:
  ServingPass() = default;

  const SelectionSpec spec_{.predictor = Predictor::kDense, .budget_tokens = kUnlimitedBudget};
  ModelConfig config_;
  KvLayout layout_;
  std::unique_ptr<Backend> backend_;
  std::optional<SlotPool> slots_;
};

absl::Status Measure(GpuContext& gpu, const std::string& model, const std::vector<int>& gpus) {
  WINNOW_ASSIGN_OR_RETURN(const auto pass, ServingPass::Create(model, gpus, 2 * kPrompt, 8));
  const std::string name =
      absl::StrCat("serving pass of ", model, ", ", gpus.size(), gpus.size() > 1 ? " GPUs" : " GPU");
  WINNOW_ASSIGN_OR_RETURN(const double prefill, pass->PrefillMs());
  gpu.report.Time(absl::StrCat(name, ", prefill of ", kPrompt, " in chunks of ", kChunk), prefill * 1000, 0);
  for (const int batch : {1, 8}) {
    WINNOW_ASSIGN_OR_RETURN(const double step, pass->StepMs(batch));
    gpu.report.Time(absl::StrCat(name, ", step of ", batch, " x ", kAttendedRows, " rows"), step * 1000, 0);
  }
  return absl::OkStatus();
}

int Other(int ordinal) {
  return ordinal == 0 ? 1 : 0;
}

// Between two passes, each of which may be 0.16 from the logit in f32, as in engine_section.cc.
constexpr double kPassesTolerance = 2 * 0.16;

double LargestDifference(std::span<const float> a, std::span<const float> b) {
  double largest = a.size() == b.size() ? 0 : NAN;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double difference = std::abs(static_cast<double>(a[i]) - b[i]);
    largest = difference <= largest ? largest : difference;  // keeps NaN
  }
  return largest;
}

absl::Status ComparePasses(GpuContext& gpu, int first) {
  const std::string model = absl::GetFlag(FLAGS_demo_model);
  constexpr uint32_t kSteps = 12, kMaxContext = 8192;
  std::vector<std::vector<uint32_t>> texts;
  for (const e2e::GoldenCase& golden : e2e::LoadGolden(absl::GetFlag(FLAGS_demo_golden))) {
    if (golden.prompt.size() > 2 * kSteps && golden.prompt.size() < kMaxContext) texts.push_back(golden.prompt);
  }
  const auto logits = [&](const std::vector<int>& gpus) -> absl::StatusOr<std::vector<float>> {
    WINNOW_ASSIGN_OR_RETURN(const auto pass, ServingPass::Create(model, gpus, kMaxContext, 2));
    std::vector<float> all;
    for (const std::vector<uint32_t>& text : texts) {
      WINNOW_ASSIGN_OR_RETURN(const std::vector<float> of_text, pass->Logits(text, kSteps));
      all.insert(all.end(), of_text.begin(), of_text.end());
    }
    return all;
  };
  const std::vector<int> both = {first, Other(first)};
  WINNOW_ASSIGN_OR_RETURN(const std::vector<float> got, logits(both));
  WINNOW_ASSIGN_OR_RETURN(const std::vector<float> expected, logits({first}));
  gpu.report.Check(absl::StrCat("serving pass of two GPUs: logits of ", texts.size(), " texts"),
                   LargestDifference(got, expected), kPassesTolerance);
  WINNOW_ASSIGN_OR_RETURN(const std::vector<float> again, logits(both));
  gpu.report.Check("serving pass of two GPUs: the same again", LargestDifference(again, got), 0);
  return absl::OkStatus();
}

void Check(GpuContext& gpu) {
  CheckAllReduce(gpu);
  CheckChunkSums(gpu);
  const std::string name = "serve dense on two GPUs";
  if (gpu.table.device_count() < 2) return gpu.report.Note(name, "not checked: there is one GPU alone");
  if (!CanServeDemo(gpu)) return;
  const int first = absl::GetFlag(FLAGS_device);
  if (const absl::Status status = ComparePasses(gpu, first); !status.ok()) {
    gpu.report.Fail("serving pass of two GPUs", std::string(status.message()));
  }
  CheckServedDense(gpu, name, absl::StrCat("cuda:", first, ",", Other(first)));
}

void Bench(GpuContext& gpu) {
  const std::string flag = absl::GetFlag(FLAGS_serve_model), model = flag.empty() ? "synthetic:qwen3-14b" : flag;
  const int first = absl::GetFlag(FLAGS_device);
  std::vector<std::vector<int>> all = {{first}};
  if (gpu.table.device_count() > 1) {
    all.push_back({first, Other(first)});
  } else {
    gpu.report.Note("tensor_parallel", "there is one GPU alone");
  }
  for (const std::vector<int>& gpus : all) {
    if (const absl::Status status = Measure(gpu, model, gpus); !status.ok()) {
      gpu.report.Fail("tensor_parallel", std::string(status.message()));
    }
  }
}

}  // namespace

GpuSection TensorParallelSection() {
  return {"tensor_parallel", Check, Bench};
}

}  // namespace winnow
