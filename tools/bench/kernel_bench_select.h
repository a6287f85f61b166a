#pragma once
#include "kernels/kernel_table.h"

namespace winnow {

// Times the selection of one layer by one position on the calling thread, for all its kv heads: key_softmax,
// softmax_sum and top_k, with keys that come from memory; beside it the time in which the machine reads those keys
// once.
void RunSelectBench(const KernelTable& kernels, Executor& one_thread);

}  // namespace winnow
