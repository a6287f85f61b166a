#include "cmd/chaos/modes/throughput.h"

#include "absl/strings/str_format.h"

namespace winnow::chaos {
namespace {

constexpr double kLeast_s = 0.5;

}  // namespace

TokenWindow TokensBetween(std::span<const Answer> answers, Clock::time_point begin, Clock::time_point end) {
  TokenWindow window{.seconds = std::max(0.0, std::chrono::duration<double>(end - begin).count())};
  for (const Answer& answer : answers) {
    for (const Arrival& arrival : answer.arrivals) {
      if (arrival.at >= begin && arrival.at < end) window.tokens += arrival.tokens;
    }
  }
  return window;
}

std::string TextOf(const Throughput& throughput) {
  std::string text;
  const auto add = [&](const TokenWindow& window, const char* when) {
    if (window.seconds < kLeast_s) return;
    absl::StrAppendFormat(&text, "%s%.1f %s (%.1f s)", text.empty() ? "tokens/s: " : ", ", window.per_s(), when,
                          window.seconds);
  };
  add(throughput.before, "before the fault");
  add(throughput.during, "in it");
  add(throughput.recovering, "just behind it");
  add(throughput.after, "then");
  return text.empty() ? "tokens/s: no span of time is long enough to tell" : text;
}

}  // namespace winnow::chaos
