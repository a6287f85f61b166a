// Decode steps beside prompts on one GPU: that neither changes the other's bits, and what each of them leaves the
// other.
#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/prefix_hash.h"
#include "common/base/status.h"
#include "common/model/synthetic_models.h"
#include "model/device/decode_graph.h"
#include "model/device/device_prefill.h"
#include "tools/bench/gpu/sections.h"

namespace winnow {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kPrompt = 16384, kAnswer = 2048;
constexpr int kChunk = 2048, kChunks = kPrompt / kChunk, kRows = 8, kMaxSteps = 600;

double Ms(Clock::duration taken) {
  return std::chrono::duration<double, std::milli>(taken).count();
}

// Some layers of an 8B model, with a batch that decodes behind contexts of kPrompt tokens and a prompt as long.
class Rig {
 public:
  static absl::StatusOr<std::unique_ptr<Rig>> Create(GpuContext& gpu, int num_layers) {
    std::unique_ptr<Rig> rig(new Rig(gpu));
    WINNOW_ASSIGN_OR_RETURN(rig->config_, SyntheticModelConfig("synthetic:qwen3-8b"));
    rig->config_.num_layers = num_layers;
    WINNOW_ASSIGN_OR_RETURN(rig->weights_, DeviceWeights::Synthesize(gpu.table, gpu.device, rig->config_, /*seed=*/1,
                                                                     /*query_bias=*/false, {}));
    WINNOW_ASSIGN_OR_RETURN(rig->prompt_layers_,
                            DeviceLayers::Create(gpu.table, gpu.device, *rig->weights_, {.max_prefill_rows = kChunk}));
    WINNOW_ASSIGN_OR_RETURN(rig->step_layers_, DeviceLayers::Create(gpu.table, gpu.device, *rig->weights_,
                                                                    {.max_list_rows = kPrompt + kAnswer}));
    WINNOW_ASSIGN_OR_RETURN(rig->prefill_, DevicePrefill::Create(gpu.device, *rig->prompt_layers_, kPrompt));
    WINNOW_RETURN_IF_ERROR(rig->FillSlots());
    std::vector<uint32_t> ids(kPrompt);
    for (uint32_t i = 0; i < kPrompt; ++i) ids[i] = 1000 + i * 7919 % 50000;
    rig->ids_ = gpu.Upload(ids);
    for (auto& event : rig->chunk_done_) event = gpu.device.NewEvent();
    for (auto& event : rig->step_done_) event = gpu.device.NewEvent();
    return rig;
  }

  // Of the steps, on that stream.
  absl::Status UseStream(device::Stream stream) {
    WINNOW_ASSIGN_OR_RETURN(
        graph_,
        DecodeGraph::Create(gpu_.device, *step_layers_, *slots_,
                            {.mode = DecodeMode::kDense, .window = device::RecentWindow::kGrowing, .stream = stream}));
    WINNOW_RETURN_IF_ERROR(SetRows());
    return graph_->Prepare(kRows);
  }

  struct Result {
    double prompt_ms = 0;          // of one prompt
    std::vector<double> steps_ms;  // between the ends of steps, while prompts were computed, if any were
    std::vector<uint32_t> tokens;  // [step][kRows] that entered
    uint64_t rows = 0;             // hash of the last layer's rows of the prompt
  };
  // So many prompts one after the other and, beside them, steps until they are done, or so many steps alone.
  absl::StatusOr<Result> Run(device::Stream prompt_stream, int prompts, bool steps_too, int steps_alone = 0) {
    WINNOW_RETURN_IF_ERROR(SetRows());
    WINNOW_RETURN_IF_ERROR(gpu_.device.SynchronizeAll());
    Result result;
    const int chunks = prompts * kChunks;
    int enqueued = 0, computed = 0, launched = 0, ended = 0;
    const Clock::time_point begin = Clock::now();
    Clock::time_point last = begin;
    while (computed < chunks || launched < steps_alone || ended < launched) {
      if (enqueued < chunks && enqueued - computed < 2) {
        const int chunk = enqueued % kChunks;
        prefill_->Chunk(prompt_stream, ids_ + chunk * kChunk, chunk * kChunk, kChunk);
        chunk_done_[enqueued++ % 2]->Record(prompt_stream);
      }
      if (computed < enqueued) {
        WINNOW_ASSIGN_OR_RETURN(const bool passed, chunk_done_[computed % 2]->HasPassed());
        if (passed && ++computed == chunks) result.prompt_ms = Ms(Clock::now() - begin) / prompts;
      }
      const bool more = (steps_too && computed < chunks && launched < kMaxSteps) || launched < steps_alone;
      if (more && launched - ended < 2) {
        WINNOW_RETURN_IF_ERROR(graph_->Step(kRows));
        step_done_[launched++ % 2]->Record(graph_->stream());
      }
      if (ended == launched) continue;
      WINNOW_ASSIGN_OR_RETURN(const bool passed, step_done_[ended % 2]->HasPassed());
      if (!passed) continue;
      const Clock::time_point now = Clock::now();
      if (ended++ > 0 && (chunks == 0 || computed < chunks)) result.steps_ms.push_back(Ms(now - last));
      last = now;
    }
    WINNOW_RETURN_IF_ERROR(gpu_.device.SynchronizeAll());
    if (launched > 0) {
      WINNOW_ASSIGN_OR_RETURN(result.tokens, graph_->TokensOfLastSteps(launched));
    }
    if (chunks > 0) result.rows = HashOfRows();
    return result;
  }

 private:
  explicit Rig(GpuContext& gpu) : gpu_(gpu) {}

  absl::Status FillSlots() {
    const DecodeSlotShape shape{.layout = config_.kv_layout(Dtype::kBf16),
                                .max_rows = kRows,
                                .hidden_size = config_.hidden_size,
                                .dense_tokens = kPrompt + kAnswer};
    WINNOW_ASSIGN_OR_RETURN(slots_, DecodeSlots::Create(gpu_.device, shape, /*page_seed=*/1));
    constexpr size_t kFilled = 1 << 20;
    for (size_t first = 0; first < shape.num_slots(); first += kFilled) {
      gpu_.table.elementwise->fill_normal(
          gpu_.stream, static_cast<std::byte*>(slots_->slot_pool()) + first * shape.row_bytes(),
          std::min(kFilled, shape.num_slots() - first) * shape.row_bytes() / 2, 2 + first, 1.0f);
    }
    return gpu_.device.Synchronize(gpu_.stream);
  }

  absl::Status SetRows() {
    std::vector<std::optional<DecodeRow>> rows;
    for (uint32_t i = 0; i < kRows; ++i) {
      rows.push_back(DecodeRow{.token_id = 1000 + i,
                               .position = kPrompt,
                               .sampling = {.temperature = 1, .sample_index = i, .seed = 1},
                               .prompt_tokens = kPrompt});
    }
    return graph_->SetRows(rows);
  }

  uint64_t HashOfRows() {
    const size_t words = size_t(config_.num_kv_heads) * kPrompt * config_.kv_layout(Dtype::kBf16).row_bytes() / 8;
    uint64_t hash = 0;
    for (const uint64_t word :
         gpu_.Download(reinterpret_cast<const uint64_t*>(prefill_->rows(config_.num_layers - 1)), words)) {
      hash = MixPrefixWord(hash, word);
    }
    return hash;
  }

  GpuContext& gpu_;
  ModelConfig config_;
  std::unique_ptr<DeviceWeights> weights_;
  std::unique_ptr<DeviceLayers> prompt_layers_, step_layers_;
  std::unique_ptr<DevicePrefill> prefill_;
  std::unique_ptr<DecodeSlots> slots_;
  std::unique_ptr<DecodeGraph> graph_;
  uint32_t* ids_ = nullptr;
  std::array<std::unique_ptr<device::Event>, 2> chunk_done_, step_done_;
};

// On a part of the multiprocessors, in eighths of them.
absl::StatusOr<device::Stream> Confined(GpuContext& gpu, int eighths) {
  return gpu.device.NewConfinedStream(gpu.device.info().num_multiprocessors * eighths / 8 / 8 * 8);
}

absl::Status CheckBits(GpuContext& gpu) {
  constexpr int kRounds = 8;
  const absl::StatusOr<device::Stream> confined = Confined(gpu, 6);
  if (!confined.ok()) {
    gpu.report.Note("steps beside prompts", confined.status().ToString());
    return absl::OkStatus();
  }
  WINNOW_ASSIGN_OR_RETURN(const auto rig, Rig::Create(gpu, /*num_layers=*/4));
  WINNOW_RETURN_IF_ERROR(rig->UseStream(gpu.device.NewStream()));
  WINNOW_ASSIGN_OR_RETURN(const Rig::Result steps, rig->Run(nullptr, 0, false, kMaxSteps));
  WINNOW_ASSIGN_OR_RETURN(const Rig::Result prompt, rig->Run(gpu.stream, 1, false));
  double tokens_differ = 0, rows_differ = 0;
  size_t compared = 0;
  for (int round = 0; round < kRounds; ++round) {
    WINNOW_ASSIGN_OR_RETURN(const Rig::Result beside, rig->Run(*confined, 2, true));
    rows_differ += beside.rows != prompt.rows;
    compared += beside.tokens.size();
    for (size_t i = 0; i < beside.tokens.size(); ++i) tokens_differ += beside.tokens[i] != steps.tokens[i];
  }
  gpu.report.Check(absl::StrCat("steps beside prompts, of ", compared, " tokens those that differ"), tokens_differ, 0);
  gpu.report.Check("prompts beside steps, whose rows differ", rows_differ, 0);
  return absl::OkStatus();
}

std::string Figures(Rig::Result result) {
  std::vector<double>& ms = result.steps_ms;
  std::sort(ms.begin(), ms.end());
  const auto at = [&](double quantile) {
    return ms[static_cast<size_t>(quantile * static_cast<double>(ms.size() - 1))];
  };
  std::string text;
  if (result.prompt_ms > 0) absl::StrAppendFormat(&text, "prompt %.1f ms", result.prompt_ms);
  if (ms.empty()) return text;
  return absl::StrFormat("%s%sstep p50 %.2f p99 %.2f ms", text, text.empty() ? "" : ", ", at(0.5), at(0.99));
}

absl::Status BenchTogether(GpuContext& gpu) {
  WINNOW_ASSIGN_OR_RETURN(const auto rig, Rig::Create(gpu, /*num_layers=*/12));
  const auto note = [&](const std::string& name, device::Stream prompts, int number, bool steps_too,
                        int steps_alone = 0) -> absl::Status {
    WINNOW_ASSIGN_OR_RETURN(Rig::Result result, rig->Run(prompts, number, steps_too, steps_alone));
    gpu.report.Note(name, Figures(std::move(result)));
    return absl::OkStatus();
  };
  WINNOW_RETURN_IF_ERROR(rig->UseStream(gpu.device.NewStream()));
  WINNOW_RETURN_IF_ERROR(rig->Run(gpu.stream, 1, false).status());  // warms up
  WINNOW_RETURN_IF_ERROR(note("steps alone", nullptr, 0, false, 200));
  WINNOW_RETURN_IF_ERROR(note("prompts alone", gpu.stream, 2, false));
  WINNOW_RETURN_IF_ERROR(note("beside on all multiprocessors", gpu.stream, 2, true));
  for (const int eighths : {5, 6, 7}) {
    const absl::StatusOr<device::Stream> confined = Confined(gpu, eighths);
    if (!confined.ok()) return absl::OkStatus();
    WINNOW_RETURN_IF_ERROR(note(absl::StrCat("prompts alone on ", eighths, "/8"), *confined, 1, false));
    WINNOW_RETURN_IF_ERROR(note(absl::StrCat("beside, prompts on ", eighths, "/8"), *confined, 2, true));
  }
  return absl::OkStatus();
}

void Check(GpuContext& gpu) {
  if (gpu.few_small) return;  // a sanitizer runs kernels one after the other
  if (const absl::Status status = CheckBits(gpu); !status.ok()) {
    gpu.report.Fail("steps beside prompts", status.ToString());
  }
}

void Bench(GpuContext& gpu) {
  if (const absl::Status status = BenchTogether(gpu); !status.ok()) {
    gpu.report.Fail("steps beside prompts", status.ToString());
  }
}

}  // namespace

GpuSection PrefillBesideSection() {
  return {.name = "prefill_beside", .check = Check, .bench = Bench};
}

}  // namespace winnow
