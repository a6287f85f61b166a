#pragma once
#include <cuda.h>

#include <cstdint>

namespace winnow::device {

// Describes a row-major matrix to the copy engine of sm_90, in boxes of 128 bytes by box_rows rows (at most 256) that
// arrive in the 128-byte swizzle. element_bytes is 1 or 2; data and pitch_bytes are multiples of 16. Host arithmetic,
// no call to the GPU. CHECKs that the driver knows tensor maps.
CUtensorMap TensorMapOf(const void* data, int element_bytes, int64_t columns, int64_t rows, int64_t pitch_bytes,
                        int box_rows);

}  // namespace winnow::device
