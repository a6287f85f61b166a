#pragma once
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/json_fields.h"
#include "common/model/model_family.h"

namespace winnow {

// Sliding windows by layer, 0 where a layer attends to everything: from layer_types, or as transformers has them for
// the family; at most max_context_tokens. Empty where no layer has one that matters: that a context outgrows, or that
// says which RoPE the layer has.
absl::StatusOr<std::vector<uint32_t>> ParseWindows(const JsonFields& config, ModelFamily family, int num_layers,
                                                   int64_t max_context_tokens);

}  // namespace winnow
