#pragma once
#include <array>
#include <cstdint>
#include <string>

#include "tools/simulation/cluster/workload.h"
#include "tools/simulation/scenario/faults.h"

namespace winnow::simulation {

// What one seed did, in numbers.
struct SeedCounts {
  uint64_t digest = 0;
  uint64_t events = 0;
  uint64_t samples = 0, cancelled = 0, tokens = 0, not_identical = 0;
  uint64_t lost_with_router = 0, stale_epochs = 0;
  RouterCounts routers;
  uint64_t virtual_ms = 0;
  std::array<uint32_t, kFaultNames.size()> faults{};
};

struct SeedResult {
  SeedCounts counts;
  std::string violation;  // empty: none
};

// The answers that an undisturbed cluster gives to each request alone. A violation where one that attends to everything
// is not what the formulas say.
SeedResult RunAlone(Answers* answers);

// What happens to the clusters of a run.
enum class Scenario {
  kFaults,   // some of all faults, under a few requests
  kStarved,  // too little CPU for everybody, under many
};

// A cluster, its load and its faults, all drawn from the seed, and what must hold afterwards.
SeedResult RunSeed(uint64_t seed, Scenario scenario, const Answers& expected, bool tracing);

}  // namespace winnow::simulation
