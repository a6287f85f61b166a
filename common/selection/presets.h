#pragma once
#include <optional>
#include <span>
#include <string_view>

#include "common/base/status.h"
#include "common/selection/selection_spec.h"
#include "winnow/v1/selection.pb.h"

namespace winnow {

// Every preset, as a full record, with one line of description.
struct SelectionPreset {
  SelectionSpec spec;
  std::string_view description;
};
std::span<const SelectionPreset> SelectionPresets();

// The preset of that name; INVALID_ARGUMENT lists the names there are.
absl::StatusOr<SelectionSpec> FindPreset(std::string_view name);

// INVALID_ARGUMENT names the field that is out of its range.
absl::Status ValidateSelection(const SelectionSpec& spec);

v1::SelectionSpec ToProto(const SelectionSpec& spec);
absl::StatusOr<SelectionSpec> FromProto(const v1::SelectionSpec& proto);

}  // namespace winnow
