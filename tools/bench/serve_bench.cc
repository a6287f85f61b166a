// What a client sees: starts whole clusters on this machine and talks to them through HTTP. Every figure stands beside
// what it could be at best.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "tools/bench/serve_sections.h"
#include "tools/machine/machine_read.h"

ABSL_FLAG(std::string, model, "", "folder of the model to serve; empty: WINNOW_BENCH_MODEL, else the demo model");
ABSL_FLAG(std::string, only, "",
          "comma-separated sections to run: decode, selection, hidden, context, prefill, beside, parallel; empty: all");
ABSL_FLAG(bool, quick, false, "fewer repeats, and no context length that takes minutes");
ABSL_FLAG(double, patience, 30,
          "seconds to wait, in each section, for other processes to leave the machine alone, and to repeat what they "
          "disturbed; \"others\" in the tables is the share of one core that they took all the same");
ABSL_FLAG(std::string, selections, "",
          "specifications that the section \"hidden\" compares, separated by semicolons; empty: presets of its choice");

namespace winnow {
namespace {

struct Section {
  const char* name;
  absl::Status (*run)(ServeBench&);
};

constexpr Section kSections[] = {{"decode", DecodeSection},    {"selection", SelectionSection},
                                 {"hidden", HiddenSection},    {"context", ContextSection},
                                 {"prefill", PrefillSection},  {"beside", BesideSection},
                                 {"parallel", ParallelSection}};

void PrintMachine(EngineAlone& engine, const std::string& model) {
  std::printf("%s, %u cores; model %s: a step reads %.1f MB of weights and %zu bytes per attended token\nread:",
              std::string(engine.kernels().name).c_str(), std::thread::hardware_concurrency(), model.c_str(),
              engine.weight_bytes() / 1e6, engine.layout().token_bytes());
  for (const int mib : {16, 48, 128, 512}) {
    const size_t bytes = static_cast<size_t>(mib) << 20;
    std::printf("  %d MiB %.1f GB/s", mib,
                bytes / MachineReadSeconds(engine.kernels(), engine.executor(), bytes) / 1e9);
  }
  std::printf("\n");
  std::fflush(stdout);
}

std::string ChosenModel() {
  if (std::string model = absl::GetFlag(FLAGS_model); !model.empty()) return model;
  const char* environment = std::getenv("WINNOW_BENCH_MODEL");
  return environment != nullptr ? environment : e2e::DemoModel();
}

// In the order in which they are named; empty where a name is unknown.
std::vector<Section> ChosenSections() {
  std::vector<Section> sections;
  for (const absl::string_view name : absl::StrSplit(absl::GetFlag(FLAGS_only), ',')) {
    const auto* found = std::find_if(std::begin(kSections), std::end(kSections),
                                     [&](const Section& section) { return section.name == name; });
    if (found == std::end(kSections)) return {};
    sections.push_back(*found);
  }
  return sections;
}

std::vector<std::string> ChosenSelections() {
  std::vector<std::string> selections;
  for (const auto part : absl::StrSplit(absl::GetFlag(FLAGS_selections), ';', absl::SkipWhitespace())) {
    selections.emplace_back(absl::StripAsciiWhitespace(part));
  }
  return selections;
}

int Run() {
  std::vector<Section> sections(std::begin(kSections), std::end(kSections));
  if (!absl::GetFlag(FLAGS_only).empty()) sections = ChosenSections();
  if (sections.empty()) return std::fprintf(stderr, "--only names a section that there is not\n"), 2;
  const std::string model = ChosenModel();
  EngineAlone::Options options;
  options.threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  absl::StatusOr<std::unique_ptr<EngineAlone>> engine = EngineAlone::Load(model, options);
  if (!engine.ok()) return std::fprintf(stderr, "%s\n", engine.status().ToString().c_str()), 1;
  PrintMachine(**engine, model);
  ServeBench bench(model, absl::GetFlag(FLAGS_quick), absl::GetFlag(FLAGS_patience), ChosenSelections(),
                   *std::move(engine));
  for (const Section& section : sections) {
    bench.BeginSection();
    const absl::Status status = section.run(bench);
    if (!status.ok()) return std::fprintf(stderr, "%s: %s\n", section.name, status.ToString().c_str()), 1;
  }
  PrintMachine(bench.engine(), model);
  return 0;
}

}  // namespace
}  // namespace winnow

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("what a client sees of whole clusters on this machine: [flags]");
  if (absl::ParseCommandLine(argc, argv).size() > 1) {
    std::fprintf(stderr, "%s\n", std::string(absl::ProgramUsageMessage()).c_str());
    return 2;
  }
  return winnow::Run();
}
