#include "cache_rank/select/device/select_params.h"

#include <algorithm>
#include <cstdint>

#include "common/base/kv_layout.h"
#include "common/selection/spec_traits.h"

namespace winnow {
namespace {

device::Aggregation AggregationOf(GroupAggregation aggregation) {
  switch (aggregation) {
    case GroupAggregation::kSoftmaxSum:
      return device::Aggregation::kSoftmaxSum;
    case GroupAggregation::kMax:
      return device::Aggregation::kMax;
    case GroupAggregation::kMean:
      return device::Aggregation::kMean;
  }
  return device::Aggregation::kSoftmaxSum;
}

}  // namespace

void DescribeSelection(const SelectionSpec& spec, device::SelectParams& params) {
  params.aggregation = AggregationOf(spec.group_aggregation);
  params.max_kept = spec.sink_tokens + spec.recent_tokens + kBlockTokens;
  params.takes_all_that_fit = true;  // as AttendsEverything says, whatever the policy
  if (spec.scorer == Scorer::kTwoStage) {
    params.candidate_factor = spec.candidate_factor;
    params.min_candidates = spec.min_candidate_tokens;
    params.score_all_below = spec.score_all_below_tokens;
    params.group_candidates = spec.group_candidate_tokens;
  }
  if (spec.policy == Policy::kMass) params.min_mass = 1 - spec.epsilon;
}

bool SelectsUnits(const SelectionSpec& spec, int group_size) {
  return SelectsWholePages(spec) &&
         (spec.scorer == Scorer::kHierarchical || spec.policy == Policy::kMass ||
          ListsPerKvHead(spec, group_size) > 1 || spec.reuse_interval > 1 || HasStreamingHeads(spec));
}

bool FitsSelection(const SelectionSpec& spec, uint32_t max_positions) {
  if (spec.scorer != Scorer::kTwoStage) return true;
  device::SelectParams params;
  params.pages.page_tokens = static_cast<int>(spec.page_tokens);
  params.max_keys = max_positions;
  params.max_budget = spec.budget_tokens;
  DescribeSelection(spec, params);
  const uint32_t most = params.group_candidates > 0 ? MostKeysOfGroups(params) : max_positions;
  return most <= device::kMostMarkedKeys;
}

bool NoneBelow(const SelectionSpec& spec, uint32_t position) {
  const uint32_t last = RecentStart(position, spec.recent_tokens, spec.sink_tokens, kBlockTokens);
  return last - spec.sink_tokens >= spec.score_all_below_tokens;
}

}  // namespace winnow
