#pragma once
#include <chrono>
#include <mutex>

#include "common/base/status.h"
#include "winnow/v1/membership.pb.h"

namespace winnow {

// Whether a process works: while it has sequences that run, its progress must not stand still for long. Thread-safe.
class Liveness {
 public:
  using Clock = std::chrono::steady_clock;

  // A layer of the longest prompt is far below it.
  static constexpr std::chrono::seconds kLongestStandstill{120};

  // UNAVAILABLE when progress has been the same, with work, since an observation so long ago.
  absl::Status Observe(const v1::RankLoad& load, Clock::time_point now);

 private:
  std::mutex mutex_;
  // Guarded by mutex_.
  uint64_t progress_ = 0;
  bool had_work_ = false;
  Clock::time_point since_{};  // when it was first seen like this
};

}  // namespace winnow
