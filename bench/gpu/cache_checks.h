#pragma once
#include "bench/gpu/gpu_context.h"

// The parts of the cache section.
namespace winnow {

void CheckAppend(GpuContext& gpu);
void CheckDiff(GpuContext& gpu);
void CheckMoves(GpuContext& gpu);  // gather and push
void CheckFlags(GpuContext& gpu);  // raise and wait
void CheckFlashD2H(GpuContext& gpu);
void BenchCache(GpuContext& gpu);

}  // namespace winnow
