#pragma once
#include "absl/status/status.h"
#include "common/model/checkpoint.h"
#include "model/weights/expert_slice.h"

namespace winnow {

// A slice of a tensor that is stored as MXFP4: `<tensor>_blocks` [num_experts, out_features, in_features / 32, 16] and
// `<tensor>_scales` [num_experts, out_features, in_features / 32]. Checks that the scales are numbers and packs codes
// and exponents as they are into `destination`; `matrix` is mxfp4. Memory beyond source and destination is one panel.
absl::Status PackMxfp4Slice(const Checkpoint& checkpoint, const ExpertSlice& slice, const PackedMatrix& matrix,
                            void* destination);

}  // namespace winnow
