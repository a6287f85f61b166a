#include <algorithm>
#include <cstdio>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cmd/commands.h"
#include "common/base/nearest_name.h"
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
    {"config", ConfigMain, "check manifests of clusters, and describe their fields"},
    {"deploy", DeployMain, "write a manifest as Kubernetes, compose, systemd or Slurm files"},
    {"keys", KeysMain, "make, list and revoke the API keys of a router"},
    {"generate", GenerateMain, "send a prompt to a running server and stream the answer"},
    {"batch", BatchMain, "send a file of requests to a server and write the answers to another"},
    {"status", StatusMain, "say what the processes of a running cluster are doing"},
    {"top", TopMain, "the same, live in the terminal"},
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
  const auto find = [](std::string_view wanted) {
    return std::find_if(std::begin(kCommands), std::end(kCommands), [&](const Command& c) { return c.name == wanted; });
  };
  const bool is_help = name == "--help" || name == "-h" || name == "help";
  if (is_help && (argc == 2 || name != "help")) {
    PrintUsage(stdout);
    return 0;
  }
  if (name == "version" || name == "--version") {
    std::printf("winnow %s\n", Version().data());
    return 0;
  }
  const std::string_view wanted = is_help ? argv[2] : argv[1];
  const Command* command = find(wanted);
  if (command != std::end(kCommands)) {
    return command->run(is_help ? Arguments{"--help"} : Arguments(argv + 2, argv + argc));
  }
  std::vector<std::string_view> names;
  for (const Command& each : kCommands) names.push_back(each.name);
  const std::string_view nearest = NearestName(wanted, names);
  std::fprintf(stderr, "winnow: unknown command \"%s\"%s; `winnow help` lists the commands\n",
               std::string(wanted).c_str(),
               nearest.empty() ? "" : absl::StrCat("; did you mean \"", std::string(nearest), "\"?").c_str());
  return 2;
}

}  // namespace
}  // namespace winnow

int main(int argc, char** argv) {
  return winnow::Main(argc, argv);
}
