#pragma once
#include <span>
#include <string_view>

#include "common/selection/spec_field.h"

namespace winnow {

// Every field of SelectionSpec but the preset's name, in the order in which specifications are printed.
std::span<const SelectionField> SelectionFields();

// The field of that name ('_' and '-' alike); an error suggests the nearest, or lists them.
absl::StatusOr<const SelectionField*> FindField(std::string_view name);

}  // namespace winnow
