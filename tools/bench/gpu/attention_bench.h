#pragma once
#include "tools/bench/gpu/gpu_context.h"

namespace winnow {

// Times of decode attention at the shape of a Qwen3-14B layer, beside what reading its rows takes.
void BenchAttention(GpuContext& gpu);

}  // namespace winnow
