#pragma once
#include "common/selection/selection_spec.h"

namespace winnow {

// Whether steps for which a cache rank does not select leave nothing to be kept there but their rows: no queries for
// later predictions, no verifications.
constexpr bool NeedsRowsAlone(const SelectionSpec& spec) {
  const bool predicts_from_past = spec.predictor == Predictor::kLast || spec.predictor == Predictor::kTemporal;
  return !predicts_from_past && !WaitsForVerification(spec) && spec.reuse_interval == 1;
}

}  // namespace winnow
