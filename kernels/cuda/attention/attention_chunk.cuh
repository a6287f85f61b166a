#pragma once
#include <cstdint>

#include "kernels/cuda/attention/attention_products.cuh"
#include "kernels/cuda/attention/attention_state.cuh"
#include "kernels/cuda/device/async_copy.cuh"

namespace winnow::device {

__device__ inline float MaxOverQuads(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 4));
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 8));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 16));
}
__device__ inline float SumOverQuads(float x) {
  x += __shfl_xor_sync(~0u, x, 4);
  x += __shfl_xor_sync(~0u, x, 8);
  return x + __shfl_xor_sync(~0u, x, 16);
}

// Where a thread of the warps that work on rows stands: its part of fragments, and its warp's tiles of head_dim.
template <int kHeadDim, Dtype kDtype>
struct Worker {
  using Shape = DecodeShape<kHeadDim, kDtype>;
  using Fragment = Fragments<kDtype>;
  using State = AttentionState<Shape::kWarpTiles>;

  __device__ static int Lane() { return threadIdx.x % 32; }
  __device__ static int Quad() { return Lane() / 4; }
  __device__ static int Pair() { return Lane() % 4; }
  __device__ static int Warp() { return threadIdx.x / 32; }
  __device__ static int FirstTile() { return Warp() * Shape::kWarpTiles; }
  __device__ static bool HasTile(int i) {
    return Shape::kValueTiles % kWorkWarps == 0 || FirstTile() + i < Shape::kValueTiles;
  }
  __device__ static void Synchronize() { asm volatile("bar.sync 1, %0;" ::"n"(kWorkWarps * 32) : "memory"); }
};

// Attention over one chunk in shared memory: each warp scores its rows, and with the weights of all takes its part of
// head_dim into its state. The threads have to meet between the two.
template <int kHeadDim, Dtype kDtype>
struct ChunkWork : Worker<kHeadDim, kDtype> {
  using Base = Worker<kHeadDim, kDtype>;
  using Shape = typename Base::Shape;
  using Fragment = typename Base::Fragment;
  using State = typename Base::State;
  using Exchange = typename Shape::Exchange;
  using Base::FirstTile, Base::Lane, Base::Pair, Base::Quad, Base::Warp;

  // What the largest weight of a warp's rows, with the scale of its value, becomes.
  static constexpr float kMostWeight = kDtype == Dtype::kI8 ? kMost16Bits : 1;

  // Scores this warp's rows; `left` counts the rows from the chunk's first to the list's last.
  __device__ void Score(const unsigned char* stage, uint32_t left, Exchange& exchange) {
    constexpr int kTiles = Shape::kWarpRowTiles;
    const uint32_t rows_at = SharedAddress(stage);
    const uint32_t first = Warp() * Shape::kWarpRows;
    float s[kTiles][4];  // [key: quad, quad + 8][head: 2 pair, 2 pair + 1]
    float value_scale[kTiles][2];
    float m[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      if constexpr (kDtype == Dtype::kI8) {
        ScoreInt8Tile<kHeadDim>(queries, rows_at, first + t * kTileRows, s[t]);
      } else {
        ScoreTile<kHeadDim, kDtype>(queries, rows_at, first + t * kTileRows, s[t]);
      }
#pragma unroll
      for (int key = 0; key < 2; ++key) {
        const uint32_t row = first + t * kTileRows + Quad() + 8 * key;
        float factor[2] = {queries.factor[0], queries.factor[1]};
        if constexpr (Fragment::kScaled) {
          const float2 scales = *reinterpret_cast<const float2*>(stage + Shape::kRowsBytes + row * 8);
          factor[0] *= scales.x;
          factor[1] *= scales.x;
          value_scale[t][key] = scales.y;
        }
#pragma unroll
        for (int head = 0; head < 2; ++head) {
          float& score = s[t][2 * key + head];
          score = row < left ? score * factor[head] : -INFINITY;
          m[head] = fmaxf(m[head], score);
        }
      }
    }
    m[0] = MaxOverQuads(m[0]);
    m[1] = MaxOverQuads(m[1]);
    float l[2] = {0, 0};
    const float base[2] = {BaseOf(m[0]), BaseOf(m[1])};
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[t][i] = Exp2(s[t][i] - base[i % 2]);
        l[i % 2] += s[t][i];
      }
    }
    l[0] = SumOverQuads(l[0]);
    l[1] = SumOverQuads(l[1]);
    if constexpr (Fragment::kScaled) {
      // The scales of V go into the weights, relative to the warp's largest: within f16 whatever they are.
      float largest = 0;
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        largest = fmaxf(largest, fmaxf(fabsf(value_scale[t][0]), fabsf(value_scale[t][1])));
      }
      largest = MaxOverQuads(largest);
      if constexpr (kDtype == Dtype::kI8) {
        // Integers hold no NaN: with the scale of one value it goes to all that the warp's rows give.
        bool is_spoilt = false;
#pragma unroll
        for (int t = 0; t < kTiles; ++t)
          is_spoilt |= value_scale[t][0] != value_scale[t][0] || value_scale[t][1] != value_scale[t][1];
        if (__any_sync(~0u, is_spoilt)) largest = NAN;
      }
      const float inverse = largest > 0 ? kMostWeight / largest : 0.0f;
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) s[t][i] *= value_scale[t][i / 2] * inverse;
      }
      if (Lane() == 0) exchange.value_scale[Warp()] = largest * (1 / kMostWeight);
    }
    if constexpr (kDtype == Dtype::kI8) {
      reinterpret_cast<uint4*>(exchange.weights[Warp()])[Lane()] = PackInt8Weights(s);
    } else {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        exchange.weights[Warp()][t][Lane()] = make_uint2(TransposeTile(Fragment::Pack(s[t][0], s[t][1])),
                                                         TransposeTile(Fragment::Pack(s[t][2], s[t][3])));
      }
    }
    if (Quad() == 0) {
      *reinterpret_cast<float2*>(&exchange.m[Warp()][2 * Pair()]) = make_float2(m[0], m[1]);
      *reinterpret_cast<float2*>(&exchange.l[Warp()][2 * Pair()]) = make_float2(l[0], l[1]);
    }
  }

  // Adds the chunk to the state.
  __device__ void Accumulate(const Exchange& exchange, uint32_t rows_at, State& state) {
    float2 m[kWorkWarps];
    float new_m[2] = {state.m[0], state.m[1]};
#pragma unroll
    for (int w = 0; w < kWorkWarps; ++w) {
      m[w] = *reinterpret_cast<const float2*>(&exchange.m[w][2 * Pair()]);
      new_m[0] = fmaxf(new_m[0], m[w].x);
      new_m[1] = fmaxf(new_m[1], m[w].y);
    }
    state.Rescale(new_m);
#pragma unroll
    for (int w = 0; w < kWorkWarps; ++w) {
      float factor[2] = {Exp2(m[w].x - BaseOf(new_m[0])), Exp2(m[w].y - BaseOf(new_m[1]))};
      const float2 l = *reinterpret_cast<const float2*>(&exchange.l[w][2 * Pair()]);
      state.l[0] = __fmaf_rn(l.x, factor[0], state.l[0]);
      state.l[1] = __fmaf_rn(l.y, factor[1], state.l[1]);
      if constexpr (Fragment::kScaled) {
        factor[0] *= exchange.value_scale[w];
        factor[1] *= exchange.value_scale[w];
      }
      float c[Shape::kWarpTiles][4] = {};
      if constexpr (kDtype == Dtype::kI8) {
        WeighInt8Values<kHeadDim>(rows_at, w * Shape::kWarpRows, FirstTile(),
                                  reinterpret_cast<const uint4*>(exchange.weights[w])[Lane()], c);
      } else {
        WeighValues<kHeadDim, kDtype, Shape::kWarpTiles>(rows_at, w * Shape::kWarpRows, FirstTile(),
                                                         exchange.weights[w], c);
      }
#pragma unroll
      for (int i = 0; i < Shape::kWarpTiles; ++i) {
#pragma unroll
        for (int k = 0; k < 4; ++k) state.o[i][k] = __fmaf_rn(c[i][k], factor[k % 2], state.o[i][k]);
      }
    }
  }

  QueryFragments<kHeadDim, kDtype> queries;
};

}  // namespace winnow::device
