#include "cache_rank/device/select_params.h"

#include <algorithm>
#include <cstdint>

#include "common/base/kv_layout.h"

namespace winnow {
namespace {

cuda::Aggregation AggregationOf(GroupAggregation aggregation) {
  switch (aggregation) {
    case GroupAggregation::kSoftmaxSum:
      return cuda::Aggregation::kSoftmaxSum;
    case GroupAggregation::kMax:
      return cuda::Aggregation::kMax;
    case GroupAggregation::kMean:
      return cuda::Aggregation::kMean;
  }
  return cuda::Aggregation::kSoftmaxSum;
}

}  // namespace

void DescribeSelection(const SelectionSpec& spec, cuda::SelectParams& params) {
  params.aggregation = AggregationOf(spec.group_aggregation);
  params.max_kept = spec.sink_tokens + spec.recent_tokens + kBlockTokens;
  params.takes_all_that_fit = true;  // as AttendsEverything says, whatever the policy
  if (spec.scorer == Scorer::kTwoStage) {
    const uint64_t rows = uint64_t{params.max_budget} * spec.candidate_factor;
    const uint64_t pages = (rows + spec.page_tokens - 1) / spec.page_tokens;
    params.candidate_pages = static_cast<uint32_t>(std::min<uint64_t>(pages, params.max_keys / spec.page_tokens + 1));
    params.score_all_below = spec.score_all_below_tokens;
  }
  if (spec.policy == Policy::kMass) params.min_mass = 1 - spec.epsilon;
}

}  // namespace winnow
