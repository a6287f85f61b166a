#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/json.h"
#include "tools/engine/decode_case.h"

namespace winnow {

// One part of a step, over all layers.
struct PartTime {
  std::string name;
  double alone_us = 0;     // a graph of it alone
  double marginal_us = 0;  // what the step takes less without it; 0: not measured
  double floor_us = 0;     // its bytes at the measured read rate; 0: none to speak of
};

struct DecodeMeasurement {
  DecodeCase of;
  uint32_t context_tokens = 0;
  int num_ranks = 1;   // of the tensor-parallel group
  int num_gpus = 1;    // with those of cache ranks
  double step_us = 0;  // median
  // All bytes that a step has to read on the inference rank's GPU at the measured read rate, or what the link or the
  // other GPU takes for theirs, where that is more; which of them.
  double floor_us = 0;
  std::string floor_of = {};
  // That a step reads: of weights, of rows that attention reads, of keys and summaries that selecting scores.
  size_t weight_bytes = 0, attended_bytes = 0, scored_bytes = 0;
  double overlap = 0;          // of selections that follow each other, measured
  double query_strength = 0;   // that gave it, see QueryBias
  bool is_tuned = false;       // the overlap is as wanted
  double selected_rows = 0;    // of a selection, in the mean over lists that select
  double resident = 0;         // share of a selection that need not be pushed
  size_t pushed_bytes = 0;     // of a step
  double touched_experts = 0;  // that a step reads, over all layers; 0 of a dense model
  // Where a step's time goes: kernels of matrices and of attention, each in a graph of its own; what selecting and
  // exchanging adds to the step; what is left. 0: not measured.
  double matrices_us = 0, attention_us = 0, selection_us = 0, rest_us = 0;
  std::vector<PartTime> parts = {};

  double tokens_per_second() const { return of.batch * 1e6 / step_us; }
};

struct PrefillMeasurement {
  uint32_t tokens = 0;
  double us = 0;
  double flops = 0;  // of matrices and of causal attention
  double gemm_flops_per_us = 0;
  double saved_us = 0;  // until every row lies in DRAM too (FlashD2H)
};

nlohmann::ordered_json ToJson(const DecodeMeasurement& result);
nlohmann::ordered_json ToJson(const PrefillMeasurement& result);
double Median(std::vector<double> values);

}  // namespace winnow
