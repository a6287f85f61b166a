#pragma once
#include "absl/status/status.h"
#include "common/model/json_fields.h"
#include "common/model/model_family.h"

namespace winnow {

// Refuses fields that change what a model computes in ways that are not built, for any family or for all but one; the
// error names field and value. Values that change nothing are let through: null, false and 1.
absl::Status RefuseOtherArithmetic(const JsonFields& config, const FamilyTraits& family);

// Refuses RoPE parameters by layer type, for families that have one for all layers.
absl::Status RefuseRopeByLayerType(const JsonFields& config, const FamilyTraits& family);

}  // namespace winnow
