#pragma once
#include <vector>

#include "common/base/check.h"
#include "common/base/kv_layout.h"
#include "common/selection/presets.h"
#include "common/selection/validate.h"

namespace winnow::fuzz {

// One of each way to select, with sizes that leave something to choose among two hundred rows; the first is dense.
inline std::vector<SelectionSpec> SmallSpecs(const KvLayout& layout) {
  std::vector<SelectionSpec> specs;
  for (const char* name :
       {"dense", "depth", "async-token", "exact-token", "sparseserve", "lserve", "psa", "quest", "fixed", "winnow"}) {
    SelectionSpec spec = FindPreset(name).value();
    if (!IsDense(spec)) spec.budget_tokens = 32;
    spec.sink_tokens = 4;
    spec.recent_tokens = 32;
    spec.window = 4;
    spec.min_candidate_tokens = 32;
    spec.candidate_factor = 2;
    spec.score_all_below_tokens = 0;
    specs.push_back(spec);
  }
  SelectionSpec streams = specs[3];
  for (size_t list = 0; list < layout.num_lists(); ++list) streams.head_budgets.push_back(list % 2 == 0 ? 0 : 32);
  SelectionSpec guarded = specs[1];
  guarded.correction = Correction::kRemote;
  guarded.min_captured_mass = 0.9f;
  guarded.budget_growth = 4;
  SelectionSpec ahead = specs[3];
  ahead.prefetch = Prefetch::kTemporal;
  SelectionSpec reuses = specs[2];
  reuses.reuse_interval = 4;
  reuses.transfer = Transfer::kFull;
  for (const SelectionSpec& spec : {streams, guarded, ahead, reuses}) specs.push_back(spec);
  for (const SelectionSpec& spec : specs) WINNOW_CHECK(ValidateSelection(spec).ok());
  return specs;
}

}  // namespace winnow::fuzz
