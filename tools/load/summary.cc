#include "tools/load/summary.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace winnow {
namespace {

double Percentile(const std::vector<double>& sorted, double share) {
  const double rank = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(std::floor(rank));
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (rank - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

}  // namespace

Distribution DistributionOf(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  return {.mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size()),
          .p50 = Percentile(values, 0.50),
          .p90 = Percentile(values, 0.90),
          .p99 = Percentile(values, 0.99),
          .count = values.size()};
}

LoadSummary Summarize(const std::vector<RequestTimes>& requests, const LoadTargets& targets) {
  LoadSummary summary;
  std::vector<double> ttft, tpot, itl, end_to_end, lateness;
  size_t good = 0;
  for (const RequestTimes& request : requests) {
    summary.duration_s = std::max(summary.duration_s, request.end_s);
    if (!request.error.empty() || request.token_s.empty()) {
      ++summary.failed;
      continue;
    }
    ++summary.completed;
    summary.prompt_tokens += request.prompt_tokens;
    summary.cached_tokens += request.cached_tokens;
    summary.output_tokens += request.num_tokens();
    lateness.push_back(request.sent_s - request.due_s);
    ttft.push_back(request.token_s.front() - request.sent_s);
    end_to_end.push_back(request.end_s - request.sent_s);
    bool meets = ttft.back() <= targets.ttft_s && end_to_end.back() <= targets.end_to_end_s;
    if (request.token_s.size() > 1) {
      tpot.push_back((request.token_s.back() - request.token_s.front()) /
                     static_cast<double>(request.num_tokens() - 1));
      meets = meets && tpot.back() <= targets.tpot_s;
      for (size_t i = 1; i < request.token_s.size(); ++i) itl.push_back(request.token_s[i] - request.token_s[i - 1]);
    }
    good += meets;
  }
  summary.ttft_s = DistributionOf(std::move(ttft));
  summary.tpot_s = DistributionOf(std::move(tpot));
  summary.itl_s = DistributionOf(std::move(itl));
  summary.end_to_end_s = DistributionOf(std::move(end_to_end));
  summary.lateness_s = DistributionOf(std::move(lateness));
  if (summary.duration_s > 0) {
    summary.requests_per_s = static_cast<double>(summary.completed) / summary.duration_s;
    summary.output_tokens_per_s = static_cast<double>(summary.output_tokens) / summary.duration_s;
    summary.goodput_per_s = static_cast<double>(good) / summary.duration_s;
  }
  return summary;
}

}  // namespace winnow
