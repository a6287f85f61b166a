#pragma once
#include "tools/bench/gpu/gpu_context.h"

namespace winnow {

// The activations of gated MLPs, against f64.
void CheckGatedMul(GpuContext& gpu, int width, int num_rows);
// A bias that goes into the residual before its norm; a norm of what a product gave, which is added to the residual;
// one in place, of a part of each row; and rows that are rounded without a norm.
void CheckOtherNorms(GpuContext& gpu, int width, int num_rows);
// Heads of which a part turns are those that turn whole, of elements in the order that has turning pairs half a head
// apart and with frequencies of 0 behind.
void CheckPartialRope(GpuContext& gpu, int head_dim, int rotary_dim);

}  // namespace winnow
