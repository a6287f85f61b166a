#pragma once
#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/collective/all_reduce_terms.cuh"
#include "kernels/cuda/matmul/matmul_fill.cuh"

// What becomes of the sums of a tile: they are left for another block, or what others have left is added and the result
// is written.
//
// A word of a part that has not come yet is +0, so that words tell of themselves and nobody needs a flag or a fence. A
// sum of +0 is left as -0, which adds up to the same. Who takes a part leaves zeros for the next launch.
//
// A block waits only for blocks behind it, which leave their parts without waiting for anybody: they are there or come
// as places become free, as blocks are started in order.
namespace winnow::device {

inline constexpr int kStripOut = 16;
inline constexpr int kStripTiles = kStripOut / 16;  // of an mma's 16 output features

// Of the output features of a strip and kRows rows, as mma leaves them in the lanes of a warp.
template <int kRows>
struct StripSums {
  float values[kStripTiles][kRows / 8][4];
};

// A lane's pieces lie 32 float4 apart: kStripTiles * kRows / 8 of them.
template <int kRows, typename Form>
__device__ inline float4* PartOf(float4* parts, int block, int strip) {
  constexpr int kPieces = kStripTiles * kRows / 8;
  return parts + (int64_t{block} * Form::kMultiplyWarps + strip) * (kPieces * 32) + threadIdx.x % 32;
}

__device__ inline void StorePiece(float4* to, float4 v) {
  asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
               : "memory");
}
__device__ inline float4 LoadPiece(const float4* from) {
  float4 v;
  asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(from)
               : "memory");
  return v;
}
__device__ inline float NeverPlusZero(float x) {
  return __float_as_uint(x) == 0 ? -0.0f : x;
}
__device__ inline bool HasCome(float4 v) {
  return __float_as_uint(v.x) != 0 && __float_as_uint(v.y) != 0 && __float_as_uint(v.z) != 0 &&
         __float_as_uint(v.w) != 0;
}

template <int kRows>
__device__ inline void LeavePart(float4* part, const StripSums<kRows>& sums) {
#pragma unroll
  for (int tile = 0; tile < kStripTiles; ++tile) {
#pragma unroll
    for (int column = 0; column < kRows / 8; ++column) {
      const float(&v)[4] = sums.values[tile][column];
      StorePiece(part + (tile * (kRows / 8) + column) * 32,
                 make_float4(NeverPlusZero(v[0]), NeverPlusZero(v[1]), NeverPlusZero(v[2]), NeverPlusZero(v[3])));
    }
  }
}

// Adds the parts of the blocks [first, last], in this order, as they come.
template <int kRows, typename Form>
__device__ inline void TakeParts(float4* parts, int first, int last, int strip, StripSums<kRows>& sums) {
  constexpr int kColumns = kRows / 8, kPieces = kStripTiles * kColumns;
  constexpr int kBatch = kPieces >= 8 ? 1 : 8 / kPieces;  // parts under way at once
  for (; first <= last; first += kBatch) {
    float4 v[kBatch][kPieces];
    bool all;
    do {
      all = true;
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece) {
          if (first + i <= last) v[i][piece] = LoadPiece(PartOf<kRows, Form>(parts, first + i, strip) + piece * 32);
        }
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece) {
          if (first + i <= last) all = all && HasCome(v[i][piece]);
        }
      }
    } while (!all);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (first + i > last) break;
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        float(&sum)[4] = sums.values[piece / kColumns][piece % kColumns];
        sum[0] += v[i][piece].x, sum[1] += v[i][piece].y, sum[2] += v[i][piece].z, sum[3] += v[i][piece].w;
        StorePiece(PartOf<kRows, Form>(parts, first + i, strip) + piece * 32, make_float4(0, 0, 0, 0));
      }
    }
  }
}

// Where a strip of y goes. What it is added to, and its scales, are under way from the start.
template <int kRows, typename Form>
class StripOutput {
 public:
  __device__ StripOutput(const DecodeMatmulArgs& args, int tile, int strip)
      : args_(args), first_out_(tile * Form::kTileOut + strip * kStripOut + threadIdx.x % 32 / 4) {
    if (args.scales != nullptr) {
      ForEachOut([&](int i, int out) { scale_[i] = args.scales[out]; });
    }
    if (kReadsEarly && args.accumulate) {
      ForEach([&](int i, int column, int j, int64_t at) { old_[i / 2][column][j] = static_cast<float*>(args.y)[at]; });
    }
  }

  __device__ void Write(const StripSums<kRows>& sums) const {
    ForEach([&](int i, int column, int j, int64_t at) {
      const float sum = sums.values[i / 2][column][j];
      const float value = args_.scales != nullptr ? __fmul_rn(sum, scale_[i]) : sum;
      if (args_.term.num_ranks > 0) {
        StoreTerm(args_.term, at, value);
        return;
      }
      if (args_.y_is_bf16) {
        static_cast<__nv_bfloat16*>(args_.y)[at] = __float2bfloat16(value);
        return;
      }
      float* y = static_cast<float*>(args_.y) + at;
      *y = !args_.accumulate ? value : value + (kReadsEarly ? old_[i / 2][column][j] : *y);
    });
  }

 private:
  static constexpr bool kReadsEarly = kRows <= 32;  // more do not fit registers

  // visit(i, out) for the halves i of the strip's mma tiles.
  template <typename Visit>
  __device__ void ForEachOut(const Visit& visit) const {
#pragma unroll
    for (int i = 0; i < 2 * kStripTiles; ++i) {
      if (first_out_ + i * 8 < args_.out_features) visit(i, first_out_ + i * 8);
    }
  }
  // visit(i, column, j, index in y) for this lane's elements; j is the place in the mma's accumulators.
  template <typename Visit>
  __device__ void ForEach(const Visit& visit) const {
    ForEachOut([&](int i, int out) {
#pragma unroll
      for (int column = 0; column < kRows / 8; ++column) {
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
          const int row = column * 8 + threadIdx.x % 4 * 2 + odd;
          if (row < args_.num_rows) visit(i, column, i % 2 * 2 + odd, row * args_.y_stride + out);
        }
      }
    });
  }

  const DecodeMatmulArgs& args_;
  const int first_out_;
  float scale_[2 * kStripTiles];
  float old_[kStripTiles][kReadsEarly ? kRows / 8 : 1][4];
};

}  // namespace winnow::device
