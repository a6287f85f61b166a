#pragma once
#include "tools/bench/gpu/gpu_context.h"

// The parts of the cache section.
namespace winnow {

void CheckAppend(GpuContext& gpu);
void CheckPageGroups(GpuContext& gpu);
void CheckAssignSlots(GpuContext& gpu);
void CheckMoves(GpuContext& gpu);  // gather and push
void CheckFlags(GpuContext& gpu);  // raise and wait
void CheckPeers(GpuContext& gpu);  // rows, raises and waits of a step with several cache ranks
void CheckFlashD2H(GpuContext& gpu);
void BenchCache(GpuContext& gpu);

}  // namespace winnow
