#include <algorithm>
#include <cstdio>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/e2e/golden.h"
#include "tools/bench/other_load.h"
#include "tools/bench/serve_sections.h"

namespace winnow {
namespace {

constexpr int kStreams = 4;
constexpr uint32_t kPromptTokens = 16384;
constexpr size_t kWarmUpTokens = 16;
constexpr size_t kAloneTokens = 1000;  // of each stream, before the prompt comes and after it
// Streams are given up kAloneTokens after the prompt, so that none may reach its limit before. A paced prompt takes
// under a minute and steps 2 to 10 ms: some 12,000 tokens beside it.
constexpr int kMostTokens = 20'000;

struct Gaps {
  double mean_ms = 0, p50_ms = 0, p99_ms = 0, most_ms = 0;
  size_t count = 0;
};

// Between tokens of the streams that both came within (first_s, last_s].
Gaps GapsWithin(std::span<const TimedStream> streams, double first_s, double last_s) {
  std::vector<double> gaps;
  for (const TimedStream& stream : streams) {
    for (size_t i = 1; i < stream.token_s.size(); ++i) {
      if (stream.token_s[i - 1] > first_s && stream.token_s[i] <= last_s) {
        gaps.push_back(1e3 * (stream.token_s[i] - stream.token_s[i - 1]));
      }
    }
  }
  if (gaps.empty()) return {};
  std::sort(gaps.begin(), gaps.end());
  const auto at = [&](double share) { return gaps[static_cast<size_t>(share * static_cast<double>(gaps.size() - 1))]; };
  return {.mean_ms = std::accumulate(gaps.begin(), gaps.end(), 0.0) / static_cast<double>(gaps.size()),
          .p50_ms = at(0.5),
          .p99_ms = at(0.99),
          .most_ms = gaps.back(),
          .count = gaps.size()};
}

struct Beside {
  Gaps before, prompt, after;  // until the prompt came, until its first token, and from then on
  double time_to_first_token_s = 0;
  double others = 0;
};

// Streams decode alone, then while a long prompt is prefilled, then alone again.
absl::StatusOr<Beside> Measure(ServeBench& bench, const e2e::Cluster& cluster, uint32_t context, size_t variation) {
  std::vector<StreamRequest> requests;
  for (int i = 0; i < kStreams; ++i) {
    requests.push_back(
        {.prompt = e2e::DemoText(context, 1000 * i), .max_tokens = kMostTokens, .after_end_events = kAloneTokens});
  }
  requests.push_back({.prompt = e2e::DemoText(kPromptTokens, 40'000 + 131 * variation),
                      .max_tokens = 4,
                      .after_events = kAloneTokens});
  bench.AwaitQuiet(cluster.AllPids());
  const OtherLoad load(cluster.AllPids());
  WINNOW_ASSIGN_OR_RETURN(const std::vector<TimedStream> all, RunStreams(cluster.http_address(), requests));
  const std::span<const TimedStream> streams = std::span(all).first(kStreams);
  const TimedStream& prompt = all.back();
  double begun_s = 0, end_s = 1e30;
  for (const TimedStream& stream : streams) {
    begun_s = std::max(begun_s, stream.token_s[kWarmUpTokens]);
    end_s = std::min(end_s, stream.token_s.back());
  }
  if (end_s < prompt.token_s.back()) return absl::InternalError("the streams ended with the prompt: more tokens");
  return Beside{.before = GapsWithin(streams, begun_s, prompt.sent_s),
                .prompt = GapsWithin(streams, prompt.sent_s, prompt.token_s.front()),
                .after = GapsWithin(streams, prompt.token_s.back(), end_s),
                .time_to_first_token_s = prompt.time_to_first_token_s(),
                .others = load.Share()};
}

void Print(const std::string& name, const Gaps& gaps, const std::string& further = "") {
  std::printf("%-40s | %8.2f %8.2f %8.2f %8.2f %6zu | %s\n", name.c_str(), gaps.mean_ms, gaps.p50_ms, gaps.p99_ms,
              gaps.most_ms, gaps.count, further.c_str());
  std::fflush(stdout);
}

void Print(const std::string& name, const Beside& beside, double target_ms) {
  Print(absl::StrCat(name, ": before"), beside.before);
  Print(absl::StrCat(name, ": beside the prompt"), beside.prompt,
        absl::StrFormat("%8.2f %10.2f %8.2f   %4.2f", target_ms, beside.prompt.p99_ms / beside.before.p99_ms,
                        beside.time_to_first_token_s, beside.others));
  Print(absl::StrCat(name, ": after"), beside.after);
}

// Without a target, then three prompts with one of three times the mean alone.
absl::Status MeasureAt(ServeBench& bench, uint32_t context) {
  const std::vector<std::string> flags = {"--prefix-cache=false", "--max-context=32768"};
  double target_ms = 0;
  {
    WINNOW_ASSIGN_OR_RETURN(const auto cluster, bench.Start("winnow", 512, flags));
    WINNOW_ASSIGN_OR_RETURN(const Beside beside, Measure(bench, *cluster, context, 0));
    Print(absl::StrCat(context, ", whole chunks"), beside, 0);
    target_ms = 3 * beside.before.mean_ms;
    WINNOW_RETURN_IF_ERROR(cluster->Stop());
  }
  std::vector<std::string> with_target = flags;
  with_target.push_back(absl::StrCat("--tpot-target=", static_cast<int>(target_ms * 1e3), "us"));
  WINNOW_ASSIGN_OR_RETURN(const auto cluster, bench.Start("winnow", 512, with_target));
  // The first prompt finds how much fits; those after it begin with what was found.
  for (size_t i = 1; i <= (bench.quick() ? 1u : 3u); ++i) {
    WINNOW_ASSIGN_OR_RETURN(const Beside beside, Measure(bench, *cluster, context, i));
    Print(absl::StrCat(context, ", --tpot-target, ", i), beside, target_ms);
  }
  return cluster->Stop();
}

}  // namespace

absl::Status BesideSection(ServeBench& bench) {
  std::printf(
      "\n## beside: ms between tokens of %d streams while a prompt of %u tokens comes in, before and after it\n"
      "By context of the streams when they begin. Target: 3 x the mean of the first row; the aim is p99 <= target.\n"
      "p99/before: p99 beside the prompt to p99 right before it. TTFT: of the prompt.\n"
      "%-40s | %8s %8s %8s %8s %6s | %8s %10s %8s %6s\n",
      kStreams, kPromptTokens, "", "mean", "p50", "p99", "most", "gaps", "target", "p99/before", "TTFT, s", "others");
  for (const uint32_t context : {1024, 8192}) WINNOW_RETURN_IF_ERROR(MeasureAt(bench, context));
  return absl::OkStatus();
}

}  // namespace winnow
