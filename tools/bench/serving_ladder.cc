// SparseServe's ladder on a virtual clock with the costs of an H200: goodput, time to the first token and rows loaded
// of each step from dense attention upwards, with the scheduler, working-set measure and fast-tier policy that serve.
//
//   serving_ladder [--workload conversations|documents] [--seconds S] [--seed N] [--json FILE]
//   serving_ladder --replay FILE [--system NAME] [--inject TOKENS]
//
// The second form serves the requests of a run that `winnow bench serve --out` measured on such a machine, and prints
// what that measured beside what the clock computes.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <span>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "tools/bench/serving/ladder.h"
#include "tools/bench/serving/replay.h"

namespace winnow::serving {
namespace {

int Usage() {
  std::fprintf(stderr,
               "usage: serving_ladder [--workload conversations|documents] [--seconds S] [--seed N] "
               "[--json FILE] | --replay FILE [--system NAME] [--inject TOKENS]\n");
  return 2;
}

int ReplayFile(const std::string& path, const std::string& name, uint32_t inject_tokens) {
  std::vector<ServingSystem> systems = Ladder();
  const auto system = std::find_if(systems.begin(), systems.end(), [&](const auto& one) { return one.name == name; });
  if (system == systems.end()) return Usage();
  system->inject_tokens = inject_tokens;
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const absl::StatusOr<MeasuredRun> run = ReadMeasuredRun(text);
  if (!run.ok()) {
    std::fprintf(stderr, "%s: %s\n", path.c_str(), run.status().ToString().c_str());
    return 1;
  }
  std::printf("%s, %zu requests\n%s", name.c_str(), run->requests.size(),
              ReplayTable(run->figures, Replay(*system, {}, *run)).c_str());
  return 0;
}

int Main(int argc, char** argv) {
  std::string workload = "conversations", json, replay, system = "dense";
  uint32_t inject = ServingSystem().inject_tokens;
  LadderOptions options;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (i + 1 == argc) return Usage();
    const std::string value = argv[++i];
    bool ok = true;
    if (flag == "--workload") {
      workload = value;
    } else if (flag == "--seconds") {
      ok = absl::SimpleAtod(value, &options.seconds) && options.seconds > 0;
    } else if (flag == "--seed") {
      ok = absl::SimpleAtoi(value, &options.seed);
    } else if (flag == "--json") {
      json = value;
    } else if (flag == "--replay") {
      replay = value;
    } else if (flag == "--inject") {
      ok = absl::SimpleAtoi(value, &inject) && inject > 0;
    } else if (flag == "--system") {
      system = value;
    } else {
      ok = false;
    }
    if (!ok) return Usage();
  }
  if (!replay.empty()) return ReplayFile(replay, system, inject);
  if (workload != "conversations" && workload != "documents") return Usage();
  options.shape = workload == "conversations" ? LongConversations() : LongDocuments();
  if (workload == "documents") options.first_rate /= 4;

  std::vector<ServingSystem> systems = Ladder();
  systems.push_back(WithoutControl());
  const std::vector<Climb> all = ClimbAll(systems, options);
  const std::span<const Climb> climbs = std::span(all).first(all.size() - 1);
  const ServiceLevel level = ServiceLevel::Of(options.costs);
  const LadderVerdict verdict = Judge(climbs, all.back());
  std::printf("%s\n", ToTable(all, level).c_str());
  std::printf("goodput of the last step over the first: %.2f\n", verdict.goodput_ratio);
  std::printf("at %.3f requests/s, where the first breaks the level, its mean TTFT is %.2f x that of the last\n",
              verdict.break_rate, verdict.ttft_ratio_at_break);
  std::printf(
      "at %.3f requests/s, where it thrashes without working-set control, that cuts loaded rows per step by %.1f x and "
      "gives %.2f x the tokens/s; with it tokens/s %s with the rate\n",
      verdict.thrash_rate, verdict.control_load_ratio, verdict.control_throughput_ratio,
      verdict.control_throughput_rises ? "never fall" : "FALL");
  if (json.empty()) return 0;
  std::ofstream out(json);
  out << ToJson(workload, all, level, verdict) << "\n";
  return out.good() ? 0 : 1;
}

}  // namespace
}  // namespace winnow::serving

int main(int argc, char** argv) {
  return winnow::serving::Main(argc, argv);
}
