#pragma once
#include <cmath>
#include <cstdint>

#include "kernels/cuda/attention/attention_lists.cuh"

namespace winnow::device {

__device__ inline float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ inline float BaseOf(float m) {
  return m == -INFINITY ? 0.0f : m;  // -inf - -inf is not a number
}

// Softmax-weighted sums so far, relative to the largest logit m: o = sum 2^(s - m) v, l = sum 2^(s - m). Held as the
// accumulators of m16n8 products lie: a thread has two query heads (columns) and kTiles tiles of two elements of
// head_dim (rows) for each: o[tile][2 * element + head].
//
// Fold(a, b) of an empty state with b is b, bit for bit but for the sign of zeros. Written in explicit operations, so
// that it gives the same bits wherever it is inlined.
template <int kTiles>
struct AttentionState {
  float m[2] = {-INFINITY, -INFINITY};
  float l[2] = {0, 0};
  float o[kTiles][4] = {};

  __device__ void Rescale(const float (&new_m)[2]) {
#pragma unroll
    for (int head = 0; head < 2; ++head) {
      const float factor = Exp2(m[head] - BaseOf(new_m[head]));
      m[head] = new_m[head];
      l[head] = __fmul_rn(l[head], factor);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        o[tile][head] = __fmul_rn(o[tile][head], factor);
        o[tile][head + 2] = __fmul_rn(o[tile][head + 2], factor);
      }
    }
  }

  // Takes `later` in and empties it.
  __device__ void Fold(AttentionState& later) {
    const float new_m[2] = {fmaxf(m[0], later.m[0]), fmaxf(m[1], later.m[1])};
    Rescale(new_m);
#pragma unroll
    for (int head = 0; head < 2; ++head) {
      const float factor = Exp2(later.m[head] - BaseOf(new_m[head]));
      l[head] = __fmaf_rn(later.l[head], factor, l[head]);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        o[tile][head] = __fmaf_rn(later.o[tile][head], factor, o[tile][head]);
        o[tile][head + 2] = __fmaf_rn(later.o[tile][head + 2], factor, o[tile][head + 2]);
      }
    }
    later = AttentionState();
  }
};

// One element of such a state, with the same arithmetic.
struct AttentionElement {
  float m = -INFINITY;
  float l = 0;
  float o = 0;

  __device__ void Fold(AttentionElement& later) {
    const float new_m = fmaxf(m, later.m);
    const float factor = Exp2(m - BaseOf(new_m)), later_factor = Exp2(later.m - BaseOf(new_m));
    m = new_m;
    l = __fmaf_rn(later.l, later_factor, __fmul_rn(l, factor));
    o = __fmaf_rn(later.o, later_factor, __fmul_rn(o, factor));
    later = AttentionElement();
  }
};

// The folds above a level: takes the parts of a list one after the other, gives the list's. See ListCut.
template <typename State>
class ListFold {
 public:
  __device__ explicit ListFold(int level) : level_(level) {}

  // `index` is that of the part among the list's of this level.
  __device__ void Take(State& part, uint32_t index) {
    if (level_ == kSplit) {
      quarter_.Fold(part);
      if (index % 4 == 3) list_.Fold(quarter_);
    } else {
      list_.Fold(part);
    }
  }
  __device__ State& Finish() {
    list_.Fold(quarter_);
    return list_;
  }

 private:
  int level_;
  State quarter_, list_;
};

}  // namespace winnow::device
