#pragma once
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>

#include "router/membership/registry.h"

namespace winnow {

// Inference ranks that live and bring nothing: every attempt on them has failed for a while, as on one that reaches a
// cache rank over gRPC and opens no data plane to it. New attempts are made there only if no other rank will do, until
// a pause is over; a token of any attempt clears the rank, and another failure doubles the pause. A rank that is
// started anew is another one. Thread-safe.
class FailingRanks {
 public:
  using Time = std::chrono::steady_clock::time_point;
  // Attempts that have failed without a token, one after the other. What fails within kAtOnce has one cause, such as
  // the end of a cache rank, and counts once.
  static constexpr uint32_t kFailures = 3;
  static constexpr std::chrono::milliseconds kAtOnce{50};
  static constexpr std::chrono::seconds kFirstPause{1}, kLongestPause{30};

  void Failed(const RankKey& rank, Time now);
  void Succeeded(const RankKey& rank);
  // Those whose pause is not over.
  Placement At(Time now) const;

 private:
  struct Record {
    uint32_t failures = 0;
    Time last;
    Time until;
  };

  mutable std::mutex mutex_;
  std::map<RankKey, Record> records_;  // guarded by mutex_
};

}  // namespace winnow
