#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "tools/bench/serving/virtual_rank.h"

namespace winnow::serving {

// What clients saw of a run, measured or computed.
struct ClientFigures {
  double mean_ttft_s = 0;
  double mean_tbt_ms = 0;  // between tokens of an answer
  double p99_tbt_ms = 0;
  double tokens_per_s = 0;  // until the last token
};

// A run that `winnow bench serve --out` saved: its requests, sent when they were sent, and what came of them. Prompt
// tokens from the prefix cache count as history.
struct MeasuredRun {
  std::vector<VirtualRequest> requests;
  ClientFigures figures;
};

// INVALID_ARGUMENT: not such a file, or one with requests that failed, whose load nobody knows.
absl::StatusOr<MeasuredRun> ReadMeasuredRun(std::string_view json);

// The same requests on the virtual clock.
ClientFigures Replay(const ServingSystem& system, const H200Costs& costs, const MeasuredRun& run);

// Both side by side, and their ratios.
std::string ReplayTable(const ClientFigures& measured, const ClientFigures& computed);

}  // namespace winnow::serving
