// winnow-gpu-check: compares the CUDA backend with the CPU backend on fresh random inputs, then times it beside what
// the memory and the arithmetic of this GPU allow.
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_cat.h"
#include "kernels/plugin/plugin.h"
#include "tools/bench/gpu/sections.h"

ABSL_FLAG(std::string, only, "", "comma-separated sections to run; empty: all");
ABSL_FLAG(bool, check, true, "compare with the CPU backend");
ABSL_FLAG(bool, bench, true, "measure times");
ABSL_FLAG(bool, sanitize, false, "for runs under compute-sanitizer: few cases of small sizes, and no times");
ABSL_FLAG(int, seconds, 300, "no section is begun after this time");
ABSL_FLAG(int, device, 0, "ordinal of the GPU");
ABSL_FLAG(uint64_t, seed, 0, "of the random inputs; 0 draws one, which is printed");
ABSL_FLAG(std::string, out, "", "folder for gpu-check.json");

ABSL_DECLARE_FLAG(std::string, demo_model);
ABSL_DECLARE_FLAG(std::string, demo_golden);

namespace winnow {
namespace {

// Large plain streams: the rates that floors are computed from.
void MeasureRates(GpuContext& gpu) {
  constexpr size_t kBytes = size_t{2} << 30;
  void* from = gpu.NewZeroed<uint8_t>(kBytes);
  void* to = gpu.New<uint8_t>(kBytes);
  auto* sink = gpu.New<uint32_t>(1);
  gpu.read_bytes_per_us = kBytes / gpu.MedianUs(1, 4, [&](device::Stream stream, int) {
    gpu.table.probe->read(stream, from, kBytes, sink);
  });
  gpu.copy_bytes_per_us = 2.0 * kBytes / gpu.MedianUs(1, 4, [&](device::Stream stream, int) {
    gpu.table.probe->copy(stream, to, from, kBytes);
  });
  gpu.report.Note("read", absl::StrCat(gpu.read_bytes_per_us / 1e6, " TB/s"));
  gpu.report.Note("copy", absl::StrCat(gpu.copy_bytes_per_us / 1e6, " TB/s"));
  gpu.FreeAll();
}

bool IsChosen(const std::string& name) {
  const std::string only = absl::GetFlag(FLAGS_only);
  return only.empty() || ("," + only + ",").find("," + name + ",") != std::string::npos;
}

// In a bundle the demo model lies beside the programs' folder; an option that names a file that exists is kept.
void FindDemoModel() {
  const std::filesystem::path models = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "../models";
  if (!std::filesystem::exists(absl::GetFlag(FLAGS_demo_model))) absl::SetFlag(&FLAGS_demo_model, models / "demo");
  if (!std::filesystem::exists(absl::GetFlag(FLAGS_demo_golden))) {
    absl::SetFlag(&FLAGS_demo_golden, models / "demo.golden.json");
  }
}

int Run() {
  FindDemoModel();
  const absl::StatusOr<const device::DeviceTable*> table = device::LoadPlugin();
  if (!table.ok()) {
    std::printf("%s\n", std::string(table.status().message()).c_str());
    return 77;  // skipped
  }
  absl::StatusOr<std::unique_ptr<device::Device>> device = (*table)->open_device(absl::GetFlag(FLAGS_device));
  if (!device.ok()) {
    std::fprintf(stderr, "%s\n", std::string(device.status().message()).c_str());
    return 1;
  }
  GpuReport report;
  const uint64_t seed = absl::GetFlag(FLAGS_seed) != 0 ? absl::GetFlag(FLAGS_seed) : std::random_device()();
  report.Note("GPU", (*device)->info().name);
  report.Note("seed", std::to_string(seed));
  const auto start = std::chrono::steady_clock::now();
  {
    GpuContext gpu(**table, **device, report, seed);
    gpu.few_small = absl::GetFlag(FLAGS_sanitize);
    if (!gpu.few_small) MeasureRates(gpu);
    for (const bool benching : {false, true}) {
      if (!absl::GetFlag(benching ? FLAGS_bench : FLAGS_check) || (benching && gpu.few_small)) continue;
      for (const GpuSection& section :
           {ElementwiseSection(), MatmulSection(), ExpertsSection(), AttentionSection(), LatentSection(),
            LatentAttentionSection(), IndexerSection(), BesideSection(), SelectionSection(), CacheSection(),
            DeviceSelectionSection(), PageUnitsSection(), PrefillAttentionSection(), PrefillBesideSection(),
            RowMovesSection(), EngineSection(), ServeSection(), TensorParallelSection(), TransportSection()}) {
        if (!IsChosen(section.name)) continue;
        const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
        if (elapsed.count() > absl::GetFlag(FLAGS_seconds)) {
          report.Note(std::string(benching ? "times of " : "checks of ") + section.name, "left out, out of time");
          continue;
        }
        (benching ? section.bench : section.check)(gpu);
        if (const absl::Status status = gpu.device.Synchronize(gpu.stream); !status.ok()) {
          report.Fail(section.name, std::string(status.message()));
        }
        gpu.FreeAll();
      }
    }
  }
  report.PrintTable();
  if (const std::string out = absl::GetFlag(FLAGS_out); !out.empty()) {
    std::ofstream(out + "/gpu-check.json") << report.ToJson().dump(1) << "\n";
  }
  return report.failures() == 0 ? 0 : 1;
}

}  // namespace
}  // namespace winnow

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("compares the CUDA backend with the CPU backend and times it");
  absl::ParseCommandLine(argc, argv);
  return winnow::Run();
}
