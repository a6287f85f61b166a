#pragma once
#include "kernels/kernel_table.h"

namespace winnow {

// All kernels of one forward pass of the bench model (8 layers, hidden 512, ffn 1408, 8 query and 2 kv heads of 64,
// vocabulary 4096), every layer with weights and slots of its own.
struct ModelPass {
  double seconds = 0;  // the best of several runs
  double bytes = 0;    // of weights and rows that it reads; 0: not what bounds it
};

// A decode step of so many sequences, each with `context` rows.
ModelPass TimeDecodePass(const KernelTable& kernels, Executor& executor, int rows, int context);
// A chunk of `rows` tokens behind `first` others.
ModelPass TimePrefillPass(const KernelTable& kernels, Executor& executor, int rows, int first);

}  // namespace winnow
