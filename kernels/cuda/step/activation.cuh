#pragma once
#include <cuda_runtime.h>

#include "kernels/device/params/activation.h"

namespace winnow::device {

__device__ inline float Activate(GatedActivation activation, float gate, float up) {
  if (activation == GatedActivation::kSilu) return gate / (1 + expf(-gate)) * up;
  if (activation == GatedActivation::kGeluTanh) {
    // (1 + tanh(t)) / 2 = 1 / (1 + exp(-2 t))
    const float t = 0.7978845608f * (gate + 0.044715f * gate * gate * gate);
    return gate / (1 + expf(-2 * t)) * up;
  }
  constexpr float kAlpha = 1.702f, kLimit = 7;
  gate = fminf(gate, kLimit);
  up = fminf(fmaxf(up, -kLimit), kLimit);
  return gate / (1 + expf(-kAlpha * gate)) * (up + 1);
}

}  // namespace winnow::device
