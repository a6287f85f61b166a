#include "common/selection/validate.h"

#include "common/selection/spec_fields.h"

namespace winnow {
namespace {

absl::Status Excludes(std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("selection: ", AbslSv(what)));
}

// What specifications can say and this version does not do yet.
absl::Status CheckBuilt(const SelectionSpec& spec) {
  auto not_built = [](std::string_view what) {
    return absl::UnimplementedError(absl::StrCat("selection: ", AbslSv(what), " is not built yet"));
  };
  if (spec.predictor == Predictor::kFixed) return not_built("the predictor \"fixed\"");
  if (spec.list_per != ListPer::kKvHead) return not_built("a list per query head");
  if (!spec.head_budgets.empty()) return not_built("budgets by head");
  if (spec.reuse_interval != 1) return not_built("reuse of selections");
  if (spec.transfer != Transfer::kDelta) return not_built("full transfer");
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateSelection(const SelectionSpec& spec) {
  for (const SelectionField& field : SelectionFields()) WINNOW_RETURN_IF_ERROR(field.Check(spec));
  if (spec.physical_page_tokens < spec.page_tokens) {
    return SpecError("physical_page_tokens", "must be at least page_tokens");
  }
  const bool verdict = spec.correction == Correction::kRemote || spec.min_captured_mass > 0;
  if (verdict && spec.predictor == Predictor::kFixed) {
    return Excludes("the predictor \"fixed\" can be neither corrected nor guarded");
  }
  return CheckBuilt(spec);
}

}  // namespace winnow
