#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>

#include "router/dispatch/loss.h"

namespace winnow {

struct RetryPauses {
  std::chrono::milliseconds first{10};   // before the third attempt; doubles ...
  std::chrono::milliseconds most{1000};  // ... up to this
  // After an attempt that found a cache rank late, which no inference rank changes.
  std::chrono::milliseconds most_when_late{4000};
};

// The n-th pause of several, from 0 on.
inline std::chrono::milliseconds DoublingPause(uint32_t n, const RetryPauses& pauses) {
  return std::min(pauses.first * (1 << std::min(n, 20u)), pauses.most);
}

// How long a request waits for its next attempt, after `fruitless` of them in a row, the last of which took `lasted`.
// The first retry is immediate, as a rank that cannot be reached is suspect by then and another one may do better.
// Further ones cost the cache rank work while it is late, each time the more the longer it takes: they wait for half of
// what the last one has taken. `jitter`, from 0 to 1, draws those apart that were lost together.
inline std::chrono::milliseconds PauseBeforeRetry(uint32_t fruitless, Loss loss,
                                                  std::chrono::steady_clock::duration lasted, double jitter,
                                                  const RetryPauses& pauses = {}) {
  using std::chrono::milliseconds;
  if (fruitless < 2) return milliseconds(0);
  milliseconds pause = DoublingPause(fruitless - 2, pauses);
  if (loss == Loss::kCacheLate) {
    pause = std::max(pause, std::min(std::chrono::duration_cast<milliseconds>(lasted / 2), pauses.most_when_late));
  }
  return std::chrono::duration_cast<milliseconds>(pause * (0.75 + jitter / 4));
}

}  // namespace winnow
