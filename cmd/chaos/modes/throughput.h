#pragma once
#include <span>
#include <string>
#include <vector>

#include "cmd/chaos/load/stream.h"

namespace winnow::chaos {

// Tokens that clients received in a span of time.
struct TokenWindow {
  double tokens = 0, seconds = 0;
  double per_s() const { return seconds > 0 ? tokens / seconds : 0; }
};
TokenWindow TokensBetween(std::span<const Answer> answers, Clock::time_point begin, Clock::time_point end);

// What the cluster did around a fault: until it, in it, while it recovered, and from then on. A window that was not
// measured has no seconds.
struct Throughput {
  TokenWindow before, during, recovering, after;
};

// "41.2 tokens/s before (10.0 s), 12.0 in the fault (5.0 s), ...", without windows that say nothing as they are
// shorter than half a second.
std::string TextOf(const Throughput& throughput);

}  // namespace winnow::chaos
