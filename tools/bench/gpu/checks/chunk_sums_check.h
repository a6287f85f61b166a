#pragma once
#include "tools/bench/gpu/gpu_context.h"

namespace winnow {

// Sums of a tensor-parallel group's chunks, whose ranks one GPU plays on streams of their own, each with few enough
// blocks for all to be there at once: bit for bit what sums and norms give one by one, whoever owns a row.
void CheckChunkSums(GpuContext& gpu);

}  // namespace winnow
