#include <algorithm>
#include <cstdio>
#include <fstream>

#include "absl/strings/str_format.h"
#include "cmd/bench_engine_options.h"
#include "cmd/command_line.h"
#include "cmd/commands.h"
#include "cmd/engine_bench.h"
#include "common/model/synthetic_models.h"

namespace winnow {
namespace {

void PrintDecode(const DecodeMeasurement& result) {
  std::printf("%-14s B %2d  %9.1f us  floor %9.1f us  %5.2f x  %8.0f tokens/s", DecodeModeName(result.mode),
              result.batch, result.step_us, result.floor_us, result.step_us / result.floor_us,
              result.batch * 1e6 / result.step_us);
  if (result.selects) {
    std::printf("  overlap %.3f  resident %.3f  pushed %.1f MB", result.overlap, result.resident,
                static_cast<double>(result.pushed_bytes) / 1e6);
  }
  std::printf("\n");
  for (const PartTime& part : result.parts) {
    std::printf("    %-12s alone %9.1f us  left out %9.1f us", part.name.c_str(), part.alone_us, part.marginal_us);
    if (part.floor_us > 0) std::printf("  floor %9.1f us  %4.2f", part.floor_us, part.floor_us / part.alone_us);
    std::printf("\n");
  }
  std::fflush(stdout);
}

void PrintPrefill(const PrefillMeasurement& result) {
  std::printf("prefill %6u tokens  %9.1f ms  %8.0f tokens/s  %5.1f TFLOP/s  %4.2f of the measured GEMM rate of %.1f\n",
              result.tokens, result.us / 1e3, result.tokens * 1e6 / result.us, result.flops / result.us / 1e6,
              result.flops / result.us / result.gemm_flops_per_us, result.gemm_flops_per_us / 1e6);
  std::fflush(stdout);
}

absl::Status Run(const BenchEngineOptions& options, const BenchEnginePlan& plan) {
  WINNOW_ASSIGN_OR_RETURN(const ModelConfig config, SyntheticModelConfig(options.model));
  WINNOW_ASSIGN_OR_RETURN(const auto bench, EngineBench::Open(config, options, plan));
  std::printf("%s\n", bench->Description().c_str());
  nlohmann::ordered_json json = bench->DescriptionJson();
  for (const DecodeMode mode : plan.modes) {
    for (const int batch : plan.batches) {
      const absl::StatusOr<DecodeMeasurement> result = bench->Decode(mode, batch);
      if (!result.ok()) {
        // What does not fit leaves room for what does.
        if (!absl::IsResourceExhausted(result.status())) return result.status();
        std::printf("%-14s B %2d  %s\n", DecodeModeName(mode), batch, std::string(result.status().message()).c_str());
        continue;
      }
      PrintDecode(*result);
      json["decode"].push_back(ToJson(*result));
    }
  }
  for (const uint32_t tokens : plan.prefill_tokens) {
    WINNOW_ASSIGN_OR_RETURN(const PrefillMeasurement result, bench->Prefill(tokens));
    PrintPrefill(result);
    json["prefill"].push_back(ToJson(result));
  }
  if (options.out.empty()) return absl::OkStatus();
  std::ofstream out(options.out);
  out << json.dump(1) << "\n";
  return out.good() ? absl::OkStatus() : absl::UnavailableError(absl::StrCat("cannot write ", options.out));
}

}  // namespace

int BenchEngineMain(const Arguments& arguments) {
  BenchEngineOptions options;
  if (const auto code = ParseCommandLine("bench engine", "[--option=value ...]", arguments, options)) return *code;
  const absl::StatusOr<BenchEnginePlan> plan = ReadBenchEngineOptions(options);
  if (!plan.ok()) return Fail("bench engine", plan.status(), 2);
  const absl::Status status = Run(options, *plan);
  return status.ok() ? 0 : Fail("bench engine", status, absl::IsNotFound(status) ? 2 : 1);
}

}  // namespace winnow
