#pragma once
#include <string_view>

#include "absl/status/status.h"
#include "common/model/json_fields.h"
#include "common/model/model_family.h"

namespace winnow {

// Refuses fields that change what a model computes in ways that are not built, for any family or for all but one; the
// error names field and value. Values that change nothing are let through: null, false, and a factor of 1 or a count of
// 0.
absl::Status RefuseOtherArithmetic(const JsonFields& config, const FamilyTraits& family);

// Whether it is one of these fields.
bool IsCheckedField(std::string_view name);

// Refuses RoPE parameters by layer type, for families that have one for all layers.
absl::Status RefuseRopeByLayerType(const JsonFields& config, const FamilyTraits& family);

}  // namespace winnow
