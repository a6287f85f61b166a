#pragma once
#include <cstdint>

#include "common/base/page_groups.h"
#include "common/selection/selection_spec.h"

namespace winnow {

// Two-stage: the groups of pages of a list with that budget whose rows [first_row, last_row) may be selected.
constexpr PageGroups PageGroupsOf(const SelectionSpec& spec, uint32_t budget, uint32_t first_row, uint32_t last_row) {
  return PageGroupsOf(spec.page_tokens, spec.group_candidate_tokens, CandidateTokens(spec, budget), first_row,
                      last_row);
}

}  // namespace winnow
