#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "tools/bench/serving/h200_costs.h"
#include "tools/bench/serving/serving_system.h"
#include "tools/bench/serving/workload.h"

namespace winnow::serving {

// What came of a workload.
struct ServingFigures {
  size_t requests = 0;
  size_t finished = 0;
  // From arrival to the first computation, without the time that its history takes on the link; of those that never got
  // there, until the end.
  double mean_queueing_s = 0;
  double mean_ttft_s = 0;  // likewise
  double p99_tbt_ms = 0;   // between tokens of an answer
  double mean_tbt_ms = 0;
  double tokens_per_s = 0;  // generated
  double rows_per_step = 0;
  double loaded_rows_per_step = 0;  // KV rows of one list, from host memory
  double parked_share = 0;          // of the sequences that decode, averaged over steps
  uint64_t steps = 0;
};

// Between two tokens of an answer.
struct TokenGap {
  double end_us = 0;
  double length_us = 0;
};

// Serves the requests on one GPU of these costs, with the scheduler of inference ranks (Scheduler, with its fair shares
// and its working-set control), working sets as cache ranks measure them (WorkingSetMeter) and the policy of their fast
// tier (FastTier), on a virtual clock: nothing here depends on the machine or its time. An iteration computes prompt
// tokens, then a decode step, as in Engine.
//
// One list of KV stands for all, in units of BlockReads::kUnitRows rows. Histories lie in host memory in every system,
// and pass the link before the new tokens of a prompt are computed: into GPU memory, or, where prefill is segmented,
// through it, a layer at a time.
ServingFigures Serve(const ServingSystem& system, const H200Costs& costs, std::span<const VirtualRequest> requests,
                     double end_us, std::vector<TokenGap>* gaps = nullptr);

}  // namespace winnow::serving
