#pragma once
#include "kernels/kernel_table.h"
#include "kernels/params/delta.h"

namespace winnow {

// One value head over the rows of a piece, as an instruction set's function gets it. Strides in floats.
struct DeltaHeadTask {
  const float* query = nullptr;  // [num_rows] x stride
  const float* key = nullptr;    // [num_rows] x stride
  const float* value = nullptr;  // [num_rows] x stride
  const float* rates = nullptr;  // [num_rows] x stride: decay, beta, query . key
  int64_t stride = 0;
  int num_rows = 0;
  int key_dim = 0;
  int value_dim = 0;
  float* state = nullptr;  // [key_dim, value_dim]
  float* out = nullptr;    // [num_rows] x out_stride
  int64_t out_stride = 0;
};

// What an instruction set brings.
struct DeltaMicro {
  // The recurrence of a head: takes a step for each row, and leaves what it answers in `out`.
  void (*head)(const DeltaHeadTask& task);
  // x / (1 + exp(-x)) of n elements, in place.
  void (*silu)(float* x, int n);
};

void RunGatedDelta(Executor& executor, const GatedDeltaParams& params, const DeltaMicro& micro);
void GateHeads(Executor& executor, const GateHeadsParams& params);

}  // namespace winnow
