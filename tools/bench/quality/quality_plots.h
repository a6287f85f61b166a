#pragma once
#include <string>
#include <vector>

#include "tools/bench/quality/answer_summary.h"

namespace winnow {

// Exact match against the budget, a panel per task and length; dense is a point at the longest prompt.
std::string AccuracyAgainstBudget(const std::vector<AnswerSummary>& summaries);
// Exact match against KiB streamed per decode step, the same way.
std::string AccuracyAgainstBytes(const std::vector<AnswerSummary>& summaries);

}  // namespace winnow
