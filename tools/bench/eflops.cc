// Equivalent FLOPs of a decode step, dense, selecting for itself and disaggregated, for any model and machine; with
// --measure beside the time of the forward pass on this machine. Formula: tools/bench/eflops/equivalent_flops.h.
//
//   eflops MODEL [--measure 1] [--contexts LIST] [--batch LIST] [--selected T] [--page P] [--resident SHARE]
//          [--machine h200|cpu] [--flops F] [--memory B] [--link B] [--shared-by-group 0|1] [--threads N] [--seconds S]
//
// MODEL is a model directory or a config.json; tools/bench/eflops/qwen3-14b is the published configuration.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "tools/bench/eflops/equivalent_flops.h"
#include "tools/bench/engine_alone.h"
#include "tools/bench/numbers.h"
#include "tools/machine/machine_flops.h"
#include "tools/machine/machine_read.h"

namespace winnow {
namespace {

// Data sheet: dense bf16, HBM3e, NVLink 4 in one direction.
constexpr MachinePeaks kH200{.flops = 989e12, .memory_bytes_per_s = 4.8e12, .link_bytes_per_s = 450e9};
constexpr size_t kReadBytes = size_t{512} << 20;

struct Options {
  std::string model;
  bool measure = false;
  std::vector<uint32_t> contexts = {8192, 32768, 131072}, batches = {1, 8, 64};
  StepShape shape;
  std::string machine;  // empty: h200, or cpu when measuring
  double flops = 0, memory = 0, link = 0;
  int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  double seconds = 1;
};

absl::StatusOr<Options> Parse(int argc, char** argv) {
  Options options;
  if (argc < 2) return absl::InvalidArgumentError("a model is needed");
  options.model = argv[1];
  for (int i = 2; i < argc; i += 2) {
    const std::string flag = argv[i];
    if (i + 1 == argc) return absl::InvalidArgumentError(flag + " needs a value");
    const std::string value = argv[i + 1];
    try {
      if (flag == "--measure") {
        options.measure = std::stoi(value) != 0;
      } else if (flag == "--contexts") {
        options.contexts = ParseNumbers(value);
      } else if (flag == "--batch") {
        options.batches = ParseNumbers(value);
      } else if (flag == "--selected") {
        options.shape.selected = static_cast<uint32_t>(std::stoul(value));
      } else if (flag == "--page") {
        options.shape.page = std::max(1u, static_cast<uint32_t>(std::stoul(value)));
      } else if (flag == "--resident") {
        options.shape.resident = std::stod(value);
      } else if (flag == "--shared-by-group") {
        options.shape.shared_by_group = std::stoi(value) != 0;
      } else if (flag == "--machine" && (value == "h200" || value == "cpu")) {
        options.machine = value;
      } else if (flag == "--flops") {
        options.flops = std::stod(value);
      } else if (flag == "--memory") {
        options.memory = std::stod(value);
      } else if (flag == "--link") {
        options.link = std::stod(value);
      } else if (flag == "--threads") {
        options.threads = std::max(1, std::stoi(value));
      } else if (flag == "--seconds") {
        options.seconds = std::stod(value);
      } else {
        return absl::InvalidArgumentError(absl::StrCat("unknown option or value: ", flag, " ", value));
      }
    } catch (const std::exception&) {
      return absl::InvalidArgumentError(absl::StrCat(flag, ": \"", value, "\" is no number"));
    }
  }
  return options;
}

absl::StatusOr<ModelConfig> LoadConfig(const std::string& model) {
  if (std::filesystem::is_directory(model)) return LoadModelConfig(model);
  std::ifstream in(model);
  if (!in) return absl::NotFoundError(model + ": cannot be read");
  return ParseModelConfig(std::string(std::istreambuf_iterator<char>(in), {}), "",
                          std::filesystem::path(model).parent_path().string());
}

absl::StatusOr<MachinePeaks> Peaks(const Options& options) {
  MachinePeaks peaks = kH200;
  if (options.machine == "cpu" || (options.machine.empty() && options.measure)) {
    WINNOW_ASSIGN_OR_RETURN(const KernelTable* kernels, CpuKernels());
    const std::unique_ptr<Executor> executor = kernels->new_executor(options.threads);
    peaks.flops = MachineFlops(*kernels, *executor);
    peaks.memory_bytes_per_s = kReadBytes / MachineReadSeconds(*kernels, *executor, kReadBytes);
    peaks.link_bytes_per_s = peaks.memory_bytes_per_s / 2;  // a copy reads and writes
  }
  if (options.flops > 0) peaks.flops = options.flops;
  if (options.memory > 0) peaks.memory_bytes_per_s = options.memory;
  if (options.link > 0) peaks.link_bytes_per_s = options.link;
  return peaks;
}

// Median milliseconds of a step that attends to `rows` rows.
double MeasuredMs(EngineAlone& engine, const Options& options, uint32_t rows, uint32_t batch) {
  engine.PrefillSeconds(rows, 1);
  return 1e3 * engine.DecodeStepSeconds(batch, options.seconds);
}

absl::Status Run(const Options& options) {
  WINNOW_ASSIGN_OR_RETURN(const ModelConfig model, LoadConfig(options.model));
  WINNOW_ASSIGN_OR_RETURN(const MachinePeaks peaks, Peaks(options));
  std::unique_ptr<EngineAlone> engine;
  if (options.measure) {
    WINNOW_ASSIGN_OR_RETURN(engine, EngineAlone::Load(options.model, {.threads = options.threads}));
  }
  std::printf(
      "%.1f TFLOP/s, %.1f GB/s, link %.1f GB/s: a byte costs %.1f FLOPs. %.3g G layer weights; %u rows selected of "
      "pages of %u, %.0f %% resident; KV read once per %s head\n"
      "Giga-eFLOPs of a step; ms: arithmetic plus traffic; link: the rows that travel, which the eFLOPs leave out\n",
      peaks.flops / 1e12, peaks.memory_bytes_per_s / 1e9, peaks.link_bytes_per_s / 1e9, peaks.intensity(),
      LayerWeightElements(model) / 1e9, options.shape.selected, options.shape.page, 100 * options.shape.resident,
      options.shape.shared_by_group ? "kv" : "query");
  if (engine != nullptr) {
    std::printf("measured: the forward pass alone, lm_head included, all rows it attends to resident\n");
  }
  std::printf("%6s %8s | %10s %10s %10s %10s %7s %7s | %10s %10s %10s%s\n", "batch", "context", "dense", "page sel.",
              "token sel.", "disagg.", "dense/", "page/", "dense ms", "disagg ms", "link ms",
              engine == nullptr ? "" : " |   measured:  dense ms  disagg ms");
  for (const uint32_t batch : options.batches) {
    for (const uint32_t context : options.contexts) {
      StepShape shape = options.shape;
      shape.batch = batch;
      shape.context = context;
      StepShape token = shape;
      token.page = 1;
      const StepCost dense = DenseStep(model, shape), disaggregated = DisaggregatedStep(model, shape);
      const auto giga = [&](const StepCost& cost) { return cost.equivalent(peaks) / 1e9; };
      std::printf("%6u %8u | %10.2f %10.2f %10.2f %10.2f %7.2f %7.2f | %10.3f %10.3f %10.3f", batch, context,
                  giga(dense), giga(SelectingStep(model, shape)), giga(SelectingStep(model, token)),
                  giga(disaggregated), giga(dense) / giga(disaggregated),
                  giga(SelectingStep(model, shape)) / giga(disaggregated), 1e3 * StepSeconds(dense, peaks),
                  1e3 * StepSeconds(disaggregated, peaks), 1e3 * LinkBytes(model, shape) / peaks.link_bytes_per_s);
      if (engine != nullptr) {
        const double dense_ms = MeasuredMs(*engine, options, context, batch);
        std::printf(" | %21.3f %10.3f", dense_ms,
                    MeasuredMs(*engine, options, std::min(context, shape.selected), batch));
      }
      std::printf("\n");
      std::fflush(stdout);
    }
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace winnow

int main(int argc, char** argv) {
  const absl::StatusOr<winnow::Options> options = winnow::Parse(argc, argv);
  const absl::Status status = options.ok() ? winnow::Run(*options) : options.status();
  if (status.ok()) return 0;
  std::fprintf(stderr, "eflops: %s\n", std::string(status.message()).c_str());
  return options.ok() ? 1 : 2;
}
