#pragma once
#include "kernels/cuda/table.h"

namespace winnow::test {

// Attention by the CPU's kernels: over the slots that a step's lists name, and over a prompt's rows. Rows of int8 are
// put together, codes and scales, as the CPU has them.
cuda::AttentionKernels HostAttentionKernels();
cuda::PrefillAttentionKernels HostPrefillKernels();

}  // namespace winnow::test
