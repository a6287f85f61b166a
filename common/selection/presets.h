#pragma once
#include <span>
#include <string_view>

#include "common/base/status.h"
#include "common/selection/selection_spec.h"

namespace winnow {

// A published system, or a combination of ours, as a full specification.
struct SelectionPreset {
  SelectionSpec spec = {};
  std::string_view description;     // one line
  std::string_view source = {};     // the paper or system it follows; empty for ours
  std::string_view not_built = {};  // what that system does and this server does not; empty when nothing
};
std::span<const SelectionPreset> SelectionPresets();

// The preset of that name; INVALID_ARGUMENT (SpecErrorField "preset") lists the names there are.
absl::StatusOr<SelectionSpec> FindPreset(std::string_view name);

}  // namespace winnow
