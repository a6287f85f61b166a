#pragma once
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "cmd/chaos/faults/fault.h"
#include "cmd/chaos/modes/session.h"

namespace winnow::chaos {

struct FaultPlan {
  std::vector<FaultKind> kinds = {};
  std::vector<std::chrono::milliseconds> stop_for = {};  // how long a process is stopped; drawn
  std::chrono::milliseconds lasts{5000};                 // of the other faults that last
  int64_t bits_per_s = 100'000'000;                      // of a throttled link
  int trials = 1;
  int at_once = 1;  // faults in a trial
};

// A fault of a trial before it is done.
struct PlannedStrike {
  FaultKind kind;
  std::optional<Member> target = {};
  std::vector<Member> peers = {};
  std::chrono::milliseconds at{}, lasts{};

  // A cache rank is lost by it, or takes itself for lost, so that identity is not promised.
  bool MayLoseCacheRank() const;
};

// Draws the faults of a trial, whose kinds take turns, their targets and times; each begins within `load_time`.
// NOT_FOUND names a fault for which the cluster has no process.
absl::StatusOr<std::vector<PlannedStrike>> DrawStrikes(const Session& session, const FaultPlan& plan, int number,
                                                       std::chrono::milliseconds load_time);

// A fault of a trial and what it did.
struct StruckFault {
  std::string name, target;
  double at_s = 0;  // after the beginning of the trial
  Effect effect;
};

// Applies the strikes at their times, each in a thread of its own, and waits for all.
std::vector<StruckFault> StrikeAll(const std::vector<PlannedStrike>& strikes, const Session& session,
                                   const FaultPlan& plan, Clock::time_point begin);

// From the first one's beginning to the last one's end; equal where there are none.
struct FaultSpan {
  Clock::time_point begin = {}, end = {};
};
FaultSpan SpanOf(const std::vector<StruckFault>& faults, Clock::time_point without);

}  // namespace winnow::chaos
