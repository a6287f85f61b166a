#include "router/generation/selection_options.h"

#include "router/generation/request_error.h"
#include "router/generation/selection_rules.h"

namespace winnow {
namespace {

absl::StatusOr<SpecChanges> ReadOptions(const v1::SelectionOptions& options) {
  SpecChanges changes;
  if (options.has_specification()) {
    if (options.has_preset())
      return SpecError("preset", "and a specification are given; a specification names its own");
    WINNOW_ASSIGN_OR_RETURN(changes, ParseSpecChanges(options.specification()));
  } else if (options.has_preset()) {
    changes.preset = options.preset();
  }
  if (options.has_budget_tokens()) {
    WINNOW_RETURN_IF_ERROR(changes.Add("budget", absl::StrCat(options.budget_tokens())));
  }
  if (options.has_min_captured_mass()) {
    WINNOW_ASSIGN_OR_RETURN(const SelectionField* field, FindField("min_captured_mass"));
    const SelectionSpec given{.min_captured_mass = options.min_captured_mass()};
    changes.fields.push_back({field, field->Print(given)});  // with all of the float's bits
  }
  return changes;
}

std::string_view ProtoField(const std::string& field, const v1::SelectionOptions& options) {
  if (field == "budget" && options.has_budget_tokens()) return "selection.budget_tokens";
  if (field == "min_captured_mass" && options.has_min_captured_mass()) return "selection.min_captured_mass";
  if (field == "preset" && options.has_preset()) return "selection.preset";
  if (options.has_specification()) return "selection.specification";
  return options.has_preset() ? "selection.preset" : "selection";
}

}  // namespace

absl::StatusOr<SelectionSpec> SelectionOf(const v1::SelectionOptions& options, const ServedModel& model) {
  const absl::StatusOr<SpecChanges> changes = ReadOptions(options);
  absl::StatusOr<SelectionSpec> spec =
      changes.ok() ? ResolveSelection(*changes, model) : absl::StatusOr<SelectionSpec>(changes.status());
  if (!spec.ok()) return AnnotateField(spec.status(), ProtoField(SpecErrorField(spec.status()), options));
  return spec;
}

}  // namespace winnow
