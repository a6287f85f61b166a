#pragma once
#include <chrono>
#include <cstdint>

#include "cmd/chaos/modes/session.h"
#include "cmd/chaos/modes/strikes.h"

namespace winnow::chaos {

// Streams whose clients go away: `cancels` of them, `clients` at a time, each at a moment drawn from before its first
// event to behind its end. Then everything must be back, and all requests be answered as ever.
struct CancelPlan {
  uint32_t cancels = 10'000;
  uint32_t clients = 64;
};
Findings RunCancels(const Session& session, const CancelPlan& plan);

// Measures what the cluster can do with `clients` clients, then sends `factor` times as many requests a second.
// Processes must not end, requests not get stuck, refusals must say when to come again, and the 99th percentile of
// those that are taken must stay within twice that of before.
struct OverloadPlan {
  std::chrono::milliseconds lasts{60'000};
  uint32_t clients = 64;
  double factor = 2;
};
Findings RunOverload(const Session& session, const OverloadPlan& plan);

// Clients that ask all the time. Memory, descriptors and threads of all processes must not grow meanwhile.
struct SoakPlan {
  std::chrono::milliseconds lasts{60'000};
  uint32_t clients = 64;
};
Findings RunSoak(const Session& session, const SoakPlan& plan);

// Clients that ask all the time while faults come and go, with a deadline for each request. Every request must end
// within a second of its deadline, answers be right, and throughput be back within five seconds of each fault's end.
struct HealPlan {
  FaultPlan faults = {};
  uint32_t clients = 64;
  std::chrono::milliseconds window{10'000};  // for which throughput is measured before and behind a fault
  std::chrono::milliseconds deadline{20'000};
};
Findings RunHeal(const Session& session, const HealPlan& plan);

}  // namespace winnow::chaos
