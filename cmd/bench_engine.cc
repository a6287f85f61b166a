#include <cstdio>
#include <fstream>
#include <set>

#include "absl/strings/str_format.h"
#include "cmd/command/command_line.h"
#include "cmd/commands.h"
#include "cmd/terminal/stop_on_interrupt.h"
#include "common/model/synthetic_models.h"
#include "tools/engine/bench_engine_options.h"
#include "tools/engine/engine_bench.h"
#include "tools/engine/table.h"

namespace winnow {
namespace {

void PrintDecode(const TableLine& line) {
  std::printf("%-14s %s B %2d at %7u  ", PlacementName(line.of.placement), line.of.preset.c_str(), line.of.batch,
              line.context_tokens);
  if (!line.measured.has_value()) {
    std::printf("%s\n", line.why_not.c_str());
    std::fflush(stdout);
    return;
  }
  const DecodeMeasurement& m = *line.measured;
  std::printf("%9.1f us  floor %9.1f us (%s)  %5.2f x  %8.0f tokens/s", m.step_us, m.floor_us, m.floor_of.c_str(),
              m.step_us / m.floor_us, m.tokens_per_second());
  const auto gb = [](size_t bytes) { return static_cast<double>(bytes) / 1e9; };
  std::printf("  reads %.2f GB of weights, %.2f of rows, %.2f to select", gb(m.weight_bytes), gb(m.attended_bytes),
              gb(m.scored_bytes));
  if (Selects(m.of.placement)) {
    std::printf("  overlap %.3f  rows %.0f  resident %.3f  pushed %.1f MB", m.overlap, m.selected_rows, m.resident,
                static_cast<double>(m.pushed_bytes) / 1e6);
  }
  std::printf("\n");
  for (const PartTime& part : m.parts) {
    std::printf("    %-12s alone %9.1f us  left out %9.1f us", part.name.c_str(), part.alone_us, part.marginal_us);
    if (part.floor_us > 0) std::printf("  floor %9.1f us  %4.2f", part.floor_us, part.floor_us / part.alone_us);
    std::printf("\n");
  }
  std::fflush(stdout);
}

void PrintPrefill(const PrefillMeasurement& result) {
  std::printf(
      "prefill %6u tokens  %9.1f ms  %8.0f tokens/s  %5.1f TFLOP/s  %4.2f of the measured GEMM rate of %.1f; "
      "until all rows are saved %9.1f ms: %+.1f %%\n",
      result.tokens, result.us / 1e3, result.tokens * 1e6 / result.us, result.flops / result.us / 1e6,
      result.flops / result.us / result.gemm_flops_per_us, result.gemm_flops_per_us / 1e6, result.saved_us / 1e3,
      100 * (result.saved_us / result.us - 1));
  std::fflush(stdout);
}

// A case of the plan, or why there is none. Batches of kGreatestBatch are still to be found.
std::vector<TableLine> CasesOf(const BenchEnginePlan& plan, const BenchEngineOptions& options,
                               const ModelConfig& shard) {
  std::vector<TableLine> cases;
  std::set<std::string> seen;  // dense stands in several lists
  const auto add = [&](const std::string& selection, KvPlacement placement, Dtype kv, int batch) {
    TableLine line{.of = {.preset = selection, .placement = placement, .spec = plan.spec}};
    if (!selection.empty()) {
      absl::StatusOr<DecodeCase> made = CaseOf(selection, placement, options.budget, shard, kv);
      if (made.ok()) {
        line.of = *std::move(made);
      } else {
        line.why_not = std::string(made.status().message());
      }
    } else if (placement == KvPlacement::kColocatedDram) {
      line.of.spec.key_copy = KeyCopy::kInt8;
    }
    if (kv != Dtype::kBf16 && selection.empty() && Selects(placement)) {
      line.why_not = "rows of a selection described by options are bf16";
    }
    line.of.kv = kv;
    line.of.batch = batch;
    const std::string name = Selects(line.of.placement) ? line.of.preset : std::string();
    const std::string key = absl::StrCat(name, PlacementName(line.of.placement), DtypeName(kv), batch);
    if (seen.insert(key).second) cases.push_back(std::move(line));
  };
  for (const KvPlacement placement : plan.placements) {
    const bool by_options = plan.selections.empty() || !Selects(placement);
    const std::vector<std::string> selections = by_options ? std::vector<std::string>{""} : plan.selections;
    for (const Dtype kv : plan.kv) {
      for (const std::string& selection : selections) {
        for (const int batch : plan.batches) add(selection, placement, kv, batch);
      }
    }
  }
  return cases;
}

absl::Status MeasureCases(const BenchEngineOptions& options, const BenchEnginePlan& plan, EngineBench& bench,
                          int num_ranks, uint32_t context_tokens, const StopOnInterrupt& interrupt,
                          std::vector<TableLine>& table, nlohmann::ordered_json& json) {
  for (TableLine& line : CasesOf(plan, options, bench.shard())) {
    if (interrupt.interrupted()) return absl::OkStatus();
    line.num_ranks = num_ranks;
    line.context_tokens = context_tokens;
    if (line.of.batch == BenchEnginePlan::kGreatestBatch) line.of.batch = bench.GreatestBatch(line.of);
    if (line.why_not.empty() && line.of.batch == 0) line.why_not = "no sequence fits";
    if (line.why_not.empty()) {
      absl::StatusOr<DecodeMeasurement> measured = bench.Decode(line.of);
      if (measured.ok()) {
        json["decode"].push_back(ToJson(*measured));
        line.measured = *std::move(measured);
      } else if (absl::IsResourceExhausted(measured.status()) || absl::IsFailedPrecondition(measured.status())) {
        line.why_not = std::string(measured.status().message());  // what does not fit leaves room for what does
      } else {
        return measured.status();
      }
    }
    PrintDecode(line);
    table.push_back(std::move(line));
  }
  return absl::OkStatus();
}

absl::Status Run(const BenchEngineOptions& options, const BenchEnginePlan& plan) {
  WINNOW_ASSIGN_OR_RETURN(const ModelConfig config, SyntheticModelConfig(options.model));
  std::optional<QualityFile> quality;
  if (!options.quality.empty()) {
    WINNOW_ASSIGN_OR_RETURN(quality, QualityFile::Load(options.quality));
  }
  const StopOnInterrupt interrupt;
  std::vector<TableLine> table;
  nlohmann::ordered_json json;
  for (const int num_ranks : plan.num_ranks) {
    if (interrupt.interrupted()) break;
    WINNOW_ASSIGN_OR_RETURN(const auto bench, EngineBench::Open(config, options, plan, num_ranks));
    std::printf("%s\n", bench->Description().c_str());
    if (json.empty()) json = bench->DescriptionJson();
    for (const uint32_t tokens : plan.contexts) {
      bench->SetContext(tokens);
      WINNOW_RETURN_IF_ERROR(MeasureCases(options, plan, *bench, num_ranks, tokens, interrupt, table, json));
    }
    for (const uint32_t tokens : num_ranks == 1 ? plan.prefill_tokens : std::vector<uint32_t>{}) {
      if (interrupt.interrupted()) break;
      WINNOW_ASSIGN_OR_RETURN(const PrefillMeasurement result, bench->Prefill(tokens));
      PrintPrefill(result);
      json["prefill"].push_back(ToJson(result));
    }
  }
  std::printf("\n%s", DecodeTable(table, quality.has_value() ? &*quality : nullptr, options.budget).c_str());
  if (interrupt.interrupted()) std::printf("interrupted: what is above is what was measured\n");
  if (!options.out.empty()) {
    std::ofstream out(options.out);
    out << json.dump(1) << "\n";
    if (!out.good()) return absl::UnavailableError(absl::StrCat("cannot write ", options.out));
  }
  return interrupt.interrupted() ? absl::CancelledError("interrupted") : absl::OkStatus();
}

int BenchEngineMain(const Arguments& arguments) {
  BenchEngineOptions options;
  if (const auto code = ParseCommandLine(kBenchEngineCommand, arguments, options)) return *code;
  const absl::StatusOr<BenchEnginePlan> plan = ReadBenchEngineOptions(options);
  if (!plan.ok()) return Fail(kBenchEngineCommand, plan.status(), 2);
  const absl::Status status = Run(options, *plan);
  if (absl::IsCancelled(status)) return kExitInterrupted;
  return status.ok() ? 0 : Fail(kBenchEngineCommand, status, absl::IsNotFound(status) ? 2 : 1);
}

}  // namespace

const Command kBenchEngineCommand = {
    .name = "bench engine",
    .summary = "time decode steps and prefill of a model of random weights on GPUs, part by part",
    .synopsis = "[--option=value ...]",
    .options = Declared<BenchEngineOptions>,
    .run = BenchEngineMain};

}  // namespace winnow
