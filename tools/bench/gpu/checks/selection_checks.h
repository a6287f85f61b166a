#pragma once
#include "tools/bench/gpu/gpu_context.h"

namespace winnow {

// Compares every kernel of kernels/device/params/selection.h with f64 references or, the top-k of values, with the CPU
// backend.
void CheckSelection(GpuContext& gpu);
// The part of it that is about whole selections.
void CheckSelectedLists(GpuContext& gpu);

}  // namespace winnow
