#include "cmd/commands.h"

namespace winnow {
namespace {

constexpr const Command* kBenchmarks[] = {&kBenchEngineCommand, &kBenchServeCommand};

}  // namespace

const Command kBenchCommand = {.name = "bench",
                               .summary = "measure a running server, or the engine on GPUs",
                               .synopsis = "BENCHMARK [--option=value ...]",
                               .subcommands = kBenchmarks};

}  // namespace winnow
