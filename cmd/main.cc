#include <cstdio>
#include <string_view>

#include "cmd/commands.h"
#include "common/metrics/version.h"

namespace winnow {
namespace {

struct Command {
  std::string_view name;
  int (*run)(const Arguments&);
  std::string_view summary;  // empty: not listed
};

constexpr Command kCommands[] = {
    {"up", UpMain, "serve a model on this machine: router, inference ranks and cache ranks, looked after"},
    {"generate", GenerateMain, "send a prompt to a running server and stream the answer"},
    {"timeline", TimelineMain, "record what the ranks of a running cluster do, by layer, as a Chrome trace"},
    {"selection", SelectionMain, "list and explain selection presets and specifications"},
    {"bench", BenchMain, "measure a running server, or the engine on GPUs"},
    {"plan", PlanMain, "say what placements of a model hold and how fast they can be, with the arithmetic"},
    {"doctor", DoctorMain, "say what this machine offers and what is missing"},
    {"profile-heads", ProfileHeadsMain, "measure on sample text how much of the context each head of a model needs"},
    {"router", RouterMain, "run a router"},
    {"inference-rank", InferenceRankMain, "run an inference rank"},
    {"cache-rank", CacheRankMain, "run a cache rank"},
    {"demo", DemoMain, ""},
};

void PrintUsage(std::FILE* file) {
  std::fprintf(file,
               "winnow serves long-context language models with the KV cache in processes of its own.\n\n"
               "usage: winnow COMMAND [--option=value ...]\n\n");
  for (const Command& command : kCommands) {
    if (command.summary.empty()) continue;
    std::fprintf(file, "  %-15s %s\n", command.name.data(), command.summary.data());
  }
  std::fprintf(file, "  %-15s %s\n\n`winnow COMMAND --help` lists a command's options.\n", "version",
               "print the version");
}

int Main(int argc, char** argv) {
  if (argc < 2) {
    PrintUsage(stderr);
    return 2;
  }
  const std::string_view name = argv[1];
  if (name == "--help" || name == "-h" || name == "help") {
    PrintUsage(stdout);
    return 0;
  }
  if (name == "version" || name == "--version") {
    std::printf("winnow %s\n", Version().data());
    return 0;
  }
  for (const Command& command : kCommands) {
    if (command.name == name) return command.run(Arguments(argv + 2, argv + argc));
  }
  std::fprintf(stderr, "winnow: unknown command \"%s\"; `winnow help` lists the commands\n", argv[1]);
  return 2;
}

}  // namespace
}  // namespace winnow

int main(int argc, char** argv) {
  return winnow::Main(argc, argv);
}
