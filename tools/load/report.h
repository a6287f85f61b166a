#pragma once
#include <string>
#include <vector>

#include "common/base/json.h"
#include "tools/load/summary.h"

namespace winnow {

// A table for people.
std::string SummaryText(const LoadSummary& summary, const LoadTargets& targets);
// A line for each kind of failure with how often it came, the commonest first; empty when there is none.
std::string FailureText(const std::vector<RequestTimes>& requests);
// Everything, in seconds: the summary and each request's times.
nlohmann::ordered_json SummaryJson(const LoadSummary& summary, const std::vector<RequestTimes>& requests);
// SVG: what share of the requests had at most so long a time to the first token, per token after it, and to the end.
std::string SummaryPlot(const std::vector<RequestTimes>& requests, const std::string& title);

}  // namespace winnow
