#pragma once
#include <span>
#include <string>
#include <vector>

#include "tools/bench/serving/virtual_rank.h"

namespace winnow::serving {

// SparseServe's: the 99th percentile of the time between tokens is at most 25 iterations of one sequence, and requests
// queue for two seconds on average.
struct ServiceLevel {
  double p99_tbt_ms = 0;
  double mean_queueing_s = 2;

  // An iteration of dense attention over 32k.
  static ServiceLevel Of(const H200Costs& costs);
  bool IsMetBy(const ServingFigures& figures) const {
    return figures.p99_tbt_ms <= p99_tbt_ms && figures.mean_queueing_s <= mean_queueing_s;
  }
};

struct RatePoint {
  double requests_per_s = 0;
  ServingFigures figures;
  bool meets_level = false;
};

// One system at growing rates of requests.
struct Climb {
  ServingSystem system;
  std::vector<RatePoint> points;

  // The highest rate at which, and at all lower ones, the level is met; 0 for none.
  double goodput_requests_per_s() const;
  // The point at a rate; null when it did not get there.
  const RatePoint* At(double requests_per_s) const;
};

struct LadderOptions {
  H200Costs costs;
  WorkloadShape shape;
  double seconds = 600;
  uint64_t seed = 1;
  double first_rate = 0.125;   // requests per second
  double rate_factor = 1.189;  // from rate to rate
  int rates_beyond = 4;        // that are tried after the first one that breaks the level
  int max_rates = 40;
};

// Every system at the same rates, from the first one on until it has broken the level.
std::vector<Climb> ClimbAll(std::span<const ServingSystem> systems, const LadderOptions& options);

// What the ladder is to show.
struct LadderVerdict {
  double goodput_ratio = 0;        // of the last system over the first
  double break_rate = 0;           // the lowest rate at which the first one breaks the level
  double ttft_ratio_at_break = 0;  // its mean time to the first token over that of the last
  // The rate at which the last one loses most of its tokens/s without working-set control; what control multiplies them
  // by there, and by how much it cuts the rows loaded per step.
  double thrash_rate = 0;
  double control_load_ratio = 0;
  double control_throughput_ratio = 0;
  bool control_throughput_rises = false;  // with it tokens/s never fall below 0.97 of what they were at a lower rate
};
// `climbs`: the ladder's; `without`: of WithoutControl().
LadderVerdict Judge(std::span<const Climb> climbs, const Climb& without);

std::string ToTable(std::span<const Climb> climbs, const ServiceLevel& level);
std::string ToJson(const std::string& workload, std::span<const Climb> climbs, const ServiceLevel& level,
                   const LadderVerdict& verdict);

}  // namespace winnow::serving
