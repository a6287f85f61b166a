#pragma once
#include "common/selection/selection_spec.h"

namespace winnow {

// Whether steps for which a cache rank does not select leave nothing to be kept there but their rows: no queries for
// later predictions, no verifications.
constexpr bool NeedsRowsAlone(const SelectionSpec& spec) {
  return !PredictsFromPast(spec.predictor) && !WaitsForVerification(spec) && spec.reuse_interval == 1;
}

}  // namespace winnow
