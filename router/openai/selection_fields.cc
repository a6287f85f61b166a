#include "router/openai/selection_fields.h"

#include <algorithm>

#include "common/selection/presets.h"
#include "common/selection/validate.h"
#include "router/openai/api_error.h"
#include "router/openai/json_reader.h"

namespace winnow {
namespace {

absl::Status RefuseUnknownKeys(const Json& object) {
  for (const auto& [key, value] : object.items()) {
    if (key == "selection" || key == "budget" || key == "min_captured_mass") continue;
    return InvalidField(
        absl::StrCat("winnow.", key),
        absl::StrCat("\"winnow.", key, "\" is not known; there are: selection, budget, min_captured_mass."),
        "unknown_parameter");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SelectionSpec> ParseSelectionFields(const Json& body, const ServedModel& model) {
  SelectionSpec spec = model.default_selection;
  const auto it = body.find("winnow");
  if (it == body.end() || it->is_null()) return spec;
  if (!it->is_object()) {
    return InvalidField("winnow", absl::StrCat("\"winnow\" must be an object, not ", it->type_name(), "."),
                        "invalid_type");
  }
  WINNOW_RETURN_IF_ERROR(RefuseUnknownKeys(*it));

  JsonReader reader(*it, "winnow.");
  if (const std::optional<std::string> name = reader.String("selection")) {
    absl::StatusOr<SelectionSpec> preset = FindPreset(*name);
    if (!preset.ok()) {
      return InvalidField("winnow.selection", absl::StrCat("\"winnow.selection\": ", preset.status().message(), "."));
    }
    spec = *std::move(preset);
    // A preset's own budget is its usual one; a server may allow less.
    if (spec.budget_tokens != kUnlimitedBudget)
      spec.budget_tokens = std::min(spec.budget_tokens, model.max_budget_tokens);
  }
  if (const std::optional<int64_t> budget = reader.Int("budget", 1, model.max_budget_tokens)) {
    if (spec.predictor == Predictor::kDense) {
      reader.Fail("budget", "has no meaning with the selection \"dense\", which attends to everything.");
    }
    spec.budget_tokens = static_cast<uint32_t>(*budget);
  }
  if (const std::optional<double> mass = reader.Number("min_captured_mass", 0, 1)) {
    spec.min_captured_mass = static_cast<float>(*mass);
  }
  WINNOW_RETURN_IF_ERROR(reader.status());
  if (absl::Status valid = ValidateSelection(spec); !valid.ok()) return InvalidField("winnow", StdSv(valid.message()));
  return spec;
}

}  // namespace winnow
