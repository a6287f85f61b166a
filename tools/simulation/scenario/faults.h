#pragma once
#include <array>
#include <cstdint>
#include <string_view>

#include "tools/simulation/cluster/cluster.h"

namespace winnow::simulation {

enum class Fault {
  kKillInference,
  kKillCache,
  kKillRouter,
  kStopInference,
  kStopCache,
  kStopRouter,
  kLateRouter,  // stopped again and again, for longer than a lease
  kSlow,
  kPartition,
  kReset,
  kFrames,  // dropped, repeated, reordered, corrupted, late
  kClockJump,
  kLatency,
};
inline constexpr std::array<std::string_view, 13> kFaultNames = {"kill of an inference rank",
                                                                 "kill of a cache rank",
                                                                 "kill of a router",
                                                                 "stop of an inference rank",
                                                                 "stop of a cache rank",
                                                                 "stop of a router",
                                                                 "late router",
                                                                 "slow process",
                                                                 "partition",
                                                                 "broken connections",
                                                                 "faulty frames",
                                                                 "clock jump",
                                                                 "latency"};

// Plans a machine that has too little CPU for all of its processes between `from` and `to`: everybody is slow, and does
// nothing at all for moments that are mostly short and sometimes longer than a lease.
void PlanStarvation(Cluster* cluster, Nanos from, Nanos to);

// Plans faults between `from` and `to` by the seed; after `to` none is in effect. Returns how often each was planned.
std::array<uint32_t, kFaultNames.size()> PlanFaults(Cluster* cluster, Nanos from, Nanos to);

}  // namespace winnow::simulation
