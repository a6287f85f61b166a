#pragma once
#include "tools/bench/gpu/gpu_context.h"

namespace winnow {

// Rows of int8 as the rotation writes them, whatever they hold: bit for bit the CPU backend's.
void CheckRopeInt8Rows(GpuContext& gpu, int head_dim, int num_rows);

// Bounds and cuboid-means of pages of such rows, and the captured mass that is measured from their keys.
void CheckIndexOfInt8Rows(GpuContext& gpu, int head_dim, int page_tokens);
void CheckMassOfInt8Rows(GpuContext& gpu, int head_dim);

}  // namespace winnow
