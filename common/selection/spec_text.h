#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/selection/spec_fields.h"

namespace winnow {

// A specification as a user wrote it: a preset and what is changed of it, in the order written; later changes win.
struct SpecChanges {
  struct Change {
    const SelectionField* field = nullptr;
    std::string value;  // checked when it is applied
  };
  std::optional<std::string> preset;
  std::vector<Change> fields;

  // An unknown name is an error.
  absl::Status Add(std::string_view field, std::string value);
};

// "preset[,field=value...]" or "field=value[,...]": "winnow,predictor=temporal,window=16,budget=512". Spaces around
// names and values do not matter. Errors name the field, its value and what is allowed.
absl::StatusOr<SpecChanges> ParseSpecChanges(std::string_view text);

// The changes on top of `base`, or of the preset if one is named. Ranges are checked, combinations are not
// (ValidateSelection does).
absl::StatusOr<SelectionSpec> ApplyChanges(const SpecChanges& changes, const SelectionSpec& base);

// ParseSpecChanges on top of the preset "winnow".
absl::StatusOr<SelectionSpec> ParseSpec(std::string_view text);

// The preset's name and what differs from the preset, in the order of SelectionFields: equal specifications have equal
// texts, and ParseSpec reads it back (budgets by head excepted, which it can only check).
std::string SpecText(const SelectionSpec& spec);
// The preset's name and every field.
std::string FullSpecText(const SelectionSpec& spec);

}  // namespace winnow
