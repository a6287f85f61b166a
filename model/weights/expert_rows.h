#pragma once
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "common/model/checkpoint.h"
#include "model/weights/expert_slice.h"

namespace winnow {

// Where the rows of one expert's matrix [out_features, in_features] lie in a tensor of all experts, as gpt-oss stores
// it: as numbers, [num_experts, in_features, out_features], or as MXFP4 (mxfp4_slice.h).
struct ExpertRowSource {
  ExpertSlice slice;
  size_t out_features = 0;
  size_t in_features = 0;
};

// Of numbers: checks that the expert's are finite and writes rows [first, first + rows) to `out` as bf16; what is wider
// is rounded to nearest even.
absl::Status CopyExpertRows(const Checkpoint& checkpoint, const ExpertRowSource& source, size_t first, size_t rows,
                            uint16_t* out);

// Of MXFP4 the same rows as a GPU has them (kernels/device/params/expert_codes.h): in_features / 2 bytes of codes, and
// in_features / 32 scales, each. INVALID_ARGUMENT where a scale is too large for that.
absl::Status CopyExpertCodes(const Checkpoint& checkpoint, const ExpertRowSource& source, size_t first, size_t rows,
                             uint8_t* codes, uint8_t* scales);

}  // namespace winnow
