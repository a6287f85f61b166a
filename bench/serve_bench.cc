// What a client sees: starts whole clusters on this machine and talks to them through HTTP. Every figure stands beside
// what it could be at best.
//
//   serve_bench [MODEL_DIR] [--quick] [--patience S] [--selections "SPEC; SPEC"]
//               [decode] [selection] [hidden] [context] [prefill] [beside] [parallel]
//
// MODEL_DIR: else WINNOW_BENCH_MODEL, else the demo model. Without section names all sections run. --quick: fewer
// repeats and no context length that takes minutes. --patience: seconds to wait, in each section, for other processes
// to leave the machine alone, and to repeat what they disturbed (default 30); "others" in the tables is the share of
// one core that they took all the same. --selections: specifications that the section "hidden" compares.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "bench/machine_read.h"
#include "bench/serve_sections.h"

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

int Run(int argc, char** argv) {
  const char* environment = std::getenv("WINNOW_BENCH_MODEL");
  std::string model = environment != nullptr ? environment : e2e::DemoModel();
  bool quick = false;
  double patience_s = 30;
  std::vector<std::string> selections;
  std::vector<Section> sections;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const Section* named = nullptr;
    for (const Section& section : kSections) {
      if (argument == section.name) named = &section;
    }
    if (named != nullptr) {
      sections.push_back(*named);
    } else if (argument == "--quick") {
      quick = true;
    } else if (argument == "--patience" && i + 1 < argc) {
      patience_s = std::stod(argv[++i]);
    } else if (argument == "--selections" && i + 1 < argc) {
      for (const auto part : absl::StrSplit(argv[++i], ';', absl::SkipWhitespace())) {
        selections.emplace_back(absl::StripAsciiWhitespace(part));
      }
    } else if (std::filesystem::is_directory(argument)) {
      model = argument;
    } else {
      std::fprintf(stderr,
                   "usage: %s [MODEL_DIR] [--quick] [--patience S] [--selections \"SPEC; SPEC\"] [decode] [selection] "
                   "[hidden] [context] [prefill] [beside] [parallel]\n",
                   argv[0]);
      return 2;
    }
  }
  if (sections.empty()) sections.assign(std::begin(kSections), std::end(kSections));

  EngineAlone::Options options;
  options.threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  absl::StatusOr<std::unique_ptr<EngineAlone>> engine = EngineAlone::Load(model, options);
  if (!engine.ok()) return std::fprintf(stderr, "%s\n", engine.status().ToString().c_str()), 1;
  PrintMachine(**engine, model);
  ServeBench bench(model, quick, patience_s, std::move(selections), *std::move(engine));
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
  return winnow::Run(argc, argv);
}
