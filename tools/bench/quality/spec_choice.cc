#include "tools/bench/quality/spec_choice.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "common/selection/head_profile.h"
#include "common/selection/spec_text.h"
#include "common/selection/validate.h"

namespace winnow {
namespace {

// The budget behind the last colon, or 0.
absl::StatusOr<uint32_t> SplitBudget(std::string_view text, std::string_view* name) {
  const size_t colon = text.rfind(':');
  *name = text.substr(0, colon);
  if (colon == std::string_view::npos) return 0;
  uint32_t budget = 0;
  if (!absl::SimpleAtoi(AbslSv(text.substr(colon + 1)), &budget) || budget == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("specification \"", AbslSv(text), "\": what follows the colon is no budget"));
  }
  return budget;
}

bool OneStep(const SelectionSpec& a, const SelectionSpec& b) {
  const auto predicts_here = [](const SelectionSpec& spec) {
    return spec.predictor == Predictor::kDepth && spec.projection == Projection::kInferenceRank;
  };
  return !predicts_here(a) || !predicts_here(b) || a.lookahead == b.lookahead;
}

}  // namespace

absl::StatusOr<SpecChoice> ParseSpecChoice(std::string_view text) {
  std::string_view name;
  WINNOW_ASSIGN_OR_RETURN(const uint32_t budget, SplitBudget(text, &name));
  SpecChoice choice{.name = std::string(name), .spec = {}};
  absl::StatusOr<SelectionSpec> spec = ParseSpec(name);
  if (!spec.ok()) return Annotate(spec.status(), absl::StrCat("specification \"", AbslSv(text), "\""));
  choice.spec = *std::move(spec);
  if (budget > 0 && !IsDense(choice.spec)) choice.spec.budget_tokens = budget;
  const absl::Status valid = ValidateSelection(choice.spec);
  if (!valid.ok()) return Annotate(valid, absl::StrCat("specification \"", AbslSv(text), "\""));
  return choice;
}

absl::StatusOr<std::vector<SpecChoice>> SpecGrid(const std::vector<std::string>& texts,
                                                 const std::vector<uint32_t>& budgets) {
  std::vector<SpecChoice> grid;
  const auto add = [&](const std::string& text) -> absl::Status {
    WINNOW_ASSIGN_OR_RETURN(SpecChoice choice, ParseSpecChoice(text));
    const auto same = [&](const SpecChoice& other) { return other.spec == choice.spec; };
    if (std::none_of(grid.begin(), grid.end(), same)) grid.push_back(std::move(choice));
    return absl::OkStatus();
  };
  WINNOW_RETURN_IF_ERROR(add("dense"));
  for (const std::string& text : texts) {
    if (text.find(':') != std::string::npos || budgets.empty()) {
      WINNOW_RETURN_IF_ERROR(add(text));
      continue;
    }
    for (const uint32_t budget : budgets) WINNOW_RETURN_IF_ERROR(add(absl::StrCat(text, ":", budget)));
  }
  return grid;
}

absl::Status UseHeadProfile(const std::string& file, const KvLayout& layout, std::vector<SpecChoice>* specs) {
  std::optional<HeadProfile> profile;
  if (!file.empty()) {
    WINNOW_ASSIGN_OR_RETURN(profile, HeadProfile::Load(file));
    WINNOW_RETURN_IF_ERROR(profile->CheckShape(layout.num_layers, layout.num_kv_heads, file));
  }
  for (SpecChoice& choice : *specs) {
    if (profile.has_value()) {
      choice.spec = WithHeadProfile(std::move(choice.spec), *profile);
      continue;
    }
    WINNOW_RETURN_IF_ERROR(
        Annotate(CheckNeedsNoHeadProfile(choice.spec), absl::StrCat("specification \"", choice.name, "\"")));
  }
  return absl::OkStatus();
}

std::vector<std::vector<size_t>> SpecBatches(std::span<const SpecChoice> specs, size_t most) {
  std::vector<std::vector<size_t>> batches;
  for (size_t i = 0; i < specs.size(); ++i) {
    const auto fits = [&](const std::vector<size_t>& batch) {
      return batch.size() < most && std::all_of(batch.begin(), batch.end(), [&](size_t other) {
               return OneStep(specs[i].spec, specs[other].spec);
             });
    };
    auto batch = std::find_if(batches.begin(), batches.end(), fits);
    if (batch == batches.end()) batch = batches.insert(batches.end(), std::vector<size_t>());
    batch->push_back(i);
  }
  return batches;
}

}  // namespace winnow
