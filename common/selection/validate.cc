#include "common/selection/validate.h"

namespace winnow {
namespace {

absl::Status CheckRange(std::string_view field, double value, double low, double high) {
  if (value >= low && value <= high) return absl::OkStatus();  // NaN is in no range
  return absl::InvalidArgumentError(
      absl::StrCat("selection.", AbslSv(field), " is ", value, ", outside [", low, ", ", high, "]"));
}

absl::Status Excludes(std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("selection: ", AbslSv(what)));
}

bool IsPage(uint32_t tokens) {
  return tokens == 16 || tokens == 32 || tokens == 64;
}

// What specifications can say and this version does not do yet.
absl::Status CheckBuilt(const SelectionSpec& spec) {
  auto not_built = [](std::string_view what) {
    return absl::UnimplementedError(absl::StrCat("selection: ", AbslSv(what), " is not built yet"));
  };
  if (spec.predictor == Predictor::kFixed) return not_built("the predictor \"fixed\"");
  if (spec.prefetch != Prefetch::kNone) return not_built("prefetch");
  if (spec.scorer != Scorer::kToken) return not_built("scoring of pages");
  if (spec.key_copy != KeyCopy::kNone) return not_built("the int8 key copy");
  if (spec.list_per != ListPer::kKvHead) return not_built("a list per query head");
  if (spec.policy != Policy::kTopK) return not_built("the mass policy");
  if (!spec.head_budgets.empty()) return not_built("budgets by head");
  if (spec.reuse_interval != 1) return not_built("reuse of selections");
  if (spec.transfer != Transfer::kDelta) return not_built("full transfer");
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateSelection(const SelectionSpec& spec) {
  WINNOW_RETURN_IF_ERROR(CheckRange("window", spec.window, 2, 32));
  WINNOW_RETURN_IF_ERROR(CheckRange("lookahead", spec.lookahead, 1, 8));
  WINNOW_RETURN_IF_ERROR(CheckRange("budget", spec.budget_tokens, 1, kUnlimitedBudget));
  WINNOW_RETURN_IF_ERROR(CheckRange("sinks", spec.sink_tokens, 0, 4096));
  WINNOW_RETURN_IF_ERROR(CheckRange("recent", spec.recent_tokens, 1, 65536));
  WINNOW_RETURN_IF_ERROR(CheckRange("pool_factor", spec.pool_factor, 1, 64));
  WINNOW_RETURN_IF_ERROR(CheckRange("candidate_factor", spec.candidate_factor, 1, 64));
  WINNOW_RETURN_IF_ERROR(CheckRange("epsilon", spec.epsilon, 0, 1));
  WINNOW_RETURN_IF_ERROR(CheckRange("reuse_interval", spec.reuse_interval, 1, 16));
  WINNOW_RETURN_IF_ERROR(CheckRange("min_captured_mass", spec.min_captured_mass, 0, 1));
  if (!IsPage(spec.page_tokens)) return Excludes("page_tokens must be 16, 32 or 64");
  if (!IsPage(spec.physical_page_tokens) || spec.physical_page_tokens < spec.page_tokens) {
    return Excludes("physical_page_tokens must be 16, 32 or 64 and at least page_tokens");
  }
  const uint32_t growth = spec.budget_growth;
  if (growth != 1 && growth != 2 && growth != 4 && growth != 8) return Excludes("budget_growth must be 1, 2, 4 or 8");
  const bool verdict = spec.correction == Correction::kRemote || spec.min_captured_mass > 0;
  if (verdict && spec.predictor == Predictor::kFixed) {
    return Excludes("the predictor \"fixed\" can be neither corrected nor guarded");
  }
  return CheckBuilt(spec);
}

}  // namespace winnow
