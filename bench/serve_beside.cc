#include <algorithm>
#include <cstdio>
#include <numeric>

#include "bench/other_load.h"
#include "bench/serve_sections.h"
#include "tests/e2e/golden.h"

namespace winnow {
namespace {

constexpr int kStreams = 4;
constexpr uint32_t kStreamContext = 1024;
constexpr uint32_t kPromptTokens = 16384;
constexpr size_t kWarmUpTokens = 16;

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
  Gaps idle, prompt;
  double time_to_first_token_s = 0;
  double others = 0;
};

// Streams decode alone, then while a long prompt is prefilled.
absl::StatusOr<Beside> Measure(ServeBench& bench, const e2e::Cluster& cluster, int tokens, double alone_s,
                               size_t variation) {
  std::vector<StreamRequest> requests;
  for (int i = 0; i < kStreams; ++i) {
    requests.push_back({.prompt = e2e::DemoText(kStreamContext, 1000 * i), .max_tokens = tokens});
  }
  requests.push_back(
      {.prompt = e2e::DemoText(kPromptTokens, 40'000 + 131 * variation), .max_tokens = 4, .start_s = alone_s});
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
  if (begun_s >= prompt.sent_s) return absl::InternalError("the streams had not begun when the prompt came");
  if (end_s < prompt.token_s.front()) return absl::InternalError("the streams ended before the prompt: more tokens");
  return Beside{.idle = GapsWithin(streams, begun_s, prompt.sent_s),
                .prompt = GapsWithin(streams, prompt.sent_s, prompt.token_s.front()),
                .time_to_first_token_s = prompt.time_to_first_token_s(),
                .others = load.Share()};
}

void Print(const char* name, const Gaps& gaps, double target_ms, double ttft_s, double others) {
  std::printf("%-34s | %8.2f %8.2f %8.2f %8.2f | %8.2f %6zu | %8.2f | %6.2f\n", name, gaps.mean_ms, gaps.p50_ms,
              gaps.p99_ms, gaps.most_ms, target_ms, gaps.count, ttft_s, others);
  std::fflush(stdout);
}

}  // namespace

absl::Status BesideSection(ServeBench& bench) {
  std::printf(
      "\n## beside: ms between tokens of %d streams at %u, alone and while a prompt of %u tokens comes in\n"
      "With --tpot-target of 3 x the mean alone the aim is p99 <= target. TTFT: of the prompt.\n"
      "%-34s | %8s %8s %8s %8s | %8s %6s | %8s | %6s\n",
      kStreams, kStreamContext, kPromptTokens, "", "mean", "p50", "p99", "most", "target", "gaps", "TTFT, s", "others");
  const std::vector<std::string> flags = {"--prefix-cache=false", "--max-context=32768"};
  // With a target the streams' own prompts are computed at its pace, too.
  constexpr double kAloneSeconds = 6, kAloneWithTargetSeconds = 18;
  double target_ms = 0;
  int tokens = 8000;
  {
    WINNOW_ASSIGN_OR_RETURN(const auto cluster, bench.Start("winnow", 512, flags));
    WINNOW_ASSIGN_OR_RETURN(const Beside beside, Measure(bench, *cluster, tokens, kAloneSeconds, 0));
    Print("alone", beside.idle, 0, 0, beside.others);
    Print("prompt, whole chunks beside steps", beside.prompt, 0, beside.time_to_first_token_s, beside.others);
    target_ms = 3 * beside.idle.mean_ms;
    // Steps may take the target while the prompt is there, which takes some multiple of its time alone.
    tokens = static_cast<int>((kAloneWithTargetSeconds + 8 * beside.time_to_first_token_s) * 1e3 / beside.idle.mean_ms);
    WINNOW_RETURN_IF_ERROR(cluster->Stop());
  }
  std::vector<std::string> with_target = flags;
  with_target.push_back(absl::StrCat("--tpot-target=", static_cast<int>(target_ms * 1e3), "us"));
  WINNOW_ASSIGN_OR_RETURN(const auto cluster, bench.Start("winnow", 512, with_target));
  // The first prompt finds how many tokens fit; those after it begin with what was found.
  for (size_t i = 1; i <= 3; ++i) {
    WINNOW_ASSIGN_OR_RETURN(const Beside beside,
                            Measure(bench, *cluster, std::min(tokens, 15'000), kAloneWithTargetSeconds, i));
    Print(absl::StrCat("prompt, --tpot-target, ", i).c_str(), beside.prompt, target_ms, beside.time_to_first_token_s,
          beside.others);
  }
  return cluster->Stop();
}

}  // namespace winnow
