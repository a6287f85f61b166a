#include <cstdio>

#include "cmd/commands.h"

namespace winnow {
namespace {

struct Benchmark {
  std::string_view name;
  int (*run)(const Arguments&);
  std::string_view summary;
};

constexpr Benchmark kBenchmarks[] = {
    {"engine", BenchEngineMain, "time decode steps and prefill of a model of random weights on GPUs, part by part"},
    {"serve", BenchServeMain, "send a workload to a running server and measure latency, throughput and goodput"},
};

}  // namespace

int BenchMain(const Arguments& arguments) {
  for (const Benchmark& benchmark : kBenchmarks) {
    if (!arguments.empty() && benchmark.name == arguments.front()) {
      return benchmark.run(Arguments(arguments.begin() + 1, arguments.end()));
    }
  }
  const bool help = !arguments.empty() && (arguments.front() == "--help" || arguments.front() == "-h");
  std::FILE* file = help ? stdout : stderr;
  if (!help && !arguments.empty()) {
    std::fprintf(file, "winnow bench: unknown benchmark \"%s\"\n", std::string(arguments.front()).c_str());
  }
  std::fprintf(file, "usage: winnow bench BENCHMARK [--option=value ...]\n\n");
  for (const Benchmark& benchmark : kBenchmarks) {
    std::fprintf(file, "  %-10s %s\n", benchmark.name.data(), benchmark.summary.data());
  }
  return help ? 0 : 2;
}

}  // namespace winnow
