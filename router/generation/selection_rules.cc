#include "router/generation/selection_rules.h"

#include <algorithm>

#include "common/selection/head_profile.h"
#include "common/selection/presets.h"
#include "common/selection/validate.h"

namespace winnow {
namespace {

bool Names(const SpecChanges& asked, std::string_view field) {
  return std::any_of(asked.fields.begin(), asked.fields.end(), [&](const auto& c) { return c.field->name == field; });
}

absl::Status TakePreset(std::string_view name, SelectionSpec& spec) {
  WINNOW_ASSIGN_OR_RETURN(const SelectionSpec preset, FindPreset(name));
  for (const SelectionField& field : SelectionFields()) {
    if (field.per_request) WINNOW_RETURN_IF_ERROR(field.Parse(field.Print(preset), spec));
  }
  spec.preset = preset.preset;
  return absl::OkStatus();
}

absl::Status RequireServersValue(const SpecChanges::Change& change, const SelectionSpec& server) {
  SelectionSpec wanted = server;
  WINNOW_RETURN_IF_ERROR(change.field->Parse(change.value, wanted));
  if (change.field->Same(wanted, server)) return absl::OkStatus();
  return SpecError(change.field->name, absl::StrCat("is fixed when the server starts, at ", change.field->Print(server),
                                                    "; a request cannot change it to ", change.field->Print(wanted)));
}

absl::Status LimitBudget(bool asked, uint32_t largest, SelectionSpec& spec) {
  if (spec.predictor == Predictor::kDense) {
    if (!asked || spec.budget_tokens == kUnlimitedBudget) return absl::OkStatus();
    return SpecError("budget", "has no meaning with the predictor \"dense\", which attends to everything");
  }
  if (spec.budget_tokens <= largest) return absl::OkStatus();
  if (asked) {
    const std::string value = spec.budget_tokens == kUnlimitedBudget ? "unlimited" : absl::StrCat(spec.budget_tokens);
    return SpecError("budget", absl::StrCat("is ", value, ", above this server's ", largest));
  }
  // A preset's own budget is its usual one; a server may allow less.
  spec.budget_tokens = largest;
  return absl::OkStatus();
}

absl::Status LimitGrowth(bool asked, const SelectionSpec& server, SelectionSpec& spec) {
  if (spec.budget_growth <= server.budget_growth) return absl::OkStatus();
  if (asked) {
    return SpecError("budget_growth",
                     absl::StrCat("is ", spec.budget_growth, ", above this server's ", server.budget_growth));
  }
  spec.budget_growth = server.budget_growth;
  return absl::OkStatus();
}

// Budgets by head keep their proportions when the budget changes; streaming heads stay streaming.
void ScaleHeadBudgets(const SelectionSpec& server, SelectionSpec& spec) {
  if (IsDense(server) || IsDense(spec) || spec.budget_tokens == server.budget_tokens) return;
  for (uint32_t& budget : spec.head_budgets) {
    if (budget == 0) continue;
    const uint64_t scaled = uint64_t{budget} * spec.budget_tokens / server.budget_tokens;
    budget = static_cast<uint32_t>(std::clamp<uint64_t>(scaled, 1, kUnlimitedBudget - 1));
  }
}

}  // namespace

absl::StatusOr<SelectionSpec> ResolveSelection(const SpecChanges& asked, const ServedModel& model) {
  const SelectionSpec& server = model.default_selection;
  SelectionSpec spec = server;
  if (asked.preset) WINNOW_RETURN_IF_ERROR(TakePreset(*asked.preset, spec));
  for (const SpecChanges::Change& change : asked.fields) {
    WINNOW_RETURN_IF_ERROR(change.field->per_request ? change.field->Parse(change.value, spec)
                                                     : RequireServersValue(change, server));
  }
  WINNOW_RETURN_IF_ERROR(LimitBudget(Names(asked, "budget"), model.max_budget_tokens, spec));
  WINNOW_RETURN_IF_ERROR(LimitGrowth(Names(asked, "budget_growth"), server, spec));
  if (!model.has_head_profile) WINNOW_RETURN_IF_ERROR(CheckNeedsNoHeadProfile(spec));
  ScaleHeadBudgets(server, spec);
  WINNOW_RETURN_IF_ERROR(ValidateSelection(spec));
  return spec;
}

}  // namespace winnow
