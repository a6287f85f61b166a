#pragma once
#include <nlohmann/json_fwd.hpp>

#include "common/selection/spec_text.h"

namespace winnow {

// {"preset": "winnow", "budget": 512, ...}: numbers, booleans and strings as the fields have them; null counts as
// absent, and so does a missing preset. Errors as ParseSpecChanges.
absl::StatusOr<SpecChanges> SpecChangesFromJson(const nlohmann::ordered_json& object);

// The preset's name and every field.
nlohmann::ordered_json FullSpecJson(const SelectionSpec& spec);

}  // namespace winnow
