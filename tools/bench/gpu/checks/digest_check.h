#pragma once
#include "tools/bench/gpu/gpu_context.h"

namespace winnow {

// Digests of the rows that attention finds in slots, against the definition (kernels/device/params/row_digest.h).
void CheckAttendedDigests(GpuContext& gpu);

// What they take for 2,048 selected rows per list.
void BenchAttendedDigests(GpuContext& gpu);

}  // namespace winnow
