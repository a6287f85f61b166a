#pragma once
#include "kernels/plugin/device_table.h"

namespace winnow::test {

// Attention by the CPU's kernels: over the slots that a step's lists name, and over a prompt's rows. Rows of int8 are
// put together, codes and scales, as the CPU has them.
device::AttentionKernels HostAttentionKernels();
device::PrefillAttentionKernels HostPrefillKernels();

}  // namespace winnow::test
