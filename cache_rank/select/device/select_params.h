#pragma once
#include "common/selection/selection_spec.h"
#include "kernels/device/params/selection.h"

namespace winnow {

// Sets what a specification says of a launch: aggregation, stages and policy. max_keys and max_budget are set already.
void DescribeSelection(const SelectionSpec& spec, device::SelectParams& params);

// True where units of pages are ranked, which kernels of their own do (kernels/device/params/page_units.h): whole pages
// in other ways than the best that fill the budget.
bool SelectsUnits(const SelectionSpec& spec, int group_size);

// Whether kernels can tell the rows of such contexts apart: two-stage selections mark what is scored of a list, without
// the groups of pages that it leaves out, and have no room to mark more than a million rows.
bool FitsSelection(const SelectionSpec& spec, uint32_t max_positions);

// True where rows of this position, and of later ones, are not so few that score_all_below_tokens has all of them
// scored.
bool NoneBelow(const SelectionSpec& spec, uint32_t position);

}  // namespace winnow
