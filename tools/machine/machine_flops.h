#pragma once
#include "kernels/kernel_table.h"

namespace winnow {

// FLOP/s of the bf16 prefill matmul, which is bound by arithmetic, at a shape that fits the caches: best of several
// runs on all threads of the executor.
double MachineFlops(const KernelTable& kernels, Executor& executor);

}  // namespace winnow
