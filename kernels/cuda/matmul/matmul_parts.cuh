#pragma once
#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/collective/all_reduce_terms.cuh"
#include "kernels/cuda/matmul/matmul_fill.cuh"
#include "kernels/cuda/matmul/matmul_forms.cuh"

// What becomes of the sums of a tile: they are left for another block, or what others have left is added and the result
// is written.
//
// A word of a part that has not come yet is +0, so that words tell of themselves and nobody needs a flag or a fence. A
// sum of +0 is left as -0, which adds up to the same. Who takes a part leaves zeros for the next launch.
//
// A block waits only for blocks behind it, which leave their parts without waiting for anybody: they are there or come
// as places become free, as blocks are started in order.
namespace winnow::device {

// Of the output features of a strip and kRows rows, as mma leaves them in the lanes of a warp.
template <int kRows>
struct StripSums {
  float values[kRows / 8][4];
};

// A lane's pieces lie 32 float4 apart: kRows / 8 of them.
template <int kRows, typename Form>
__device__ inline float4* PartOf(float4* parts, int block, int strip) {
  constexpr int kPieces = kRows / 8;
  return parts + (int64_t{block} * Form::kMultiplyWarps + strip) * (kPieces * 32) + threadIdx.x % 32;
}

__device__ inline void StorePiece(float4* to, float4 v) {
  asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
               : "memory");
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
  for (int column = 0; column < kRows / 8; ++column) {
    const float(&v)[4] = sums.values[column];
    StorePiece(part + column * 32,
               make_float4(NeverPlusZero(v[0]), NeverPlusZero(v[1]), NeverPlusZero(v[2]), NeverPlusZero(v[3])));
  }
}

// A piece from where others left it, through the L2, to shared memory; takes no registers while it is under way.
__device__ inline void FetchPiece(uint32_t to, const float4* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ inline void AwaitPieces() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}
__device__ inline float4 LoadFetched(uint32_t from) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(from)
               : "memory");
  return v;
}

// Adds the parts of the blocks [first, last], in this order, as they come. They come through the ring, in which nothing
// is under way any more: a block finishes a shared tile at the end of its work.
template <int kRows, typename Form>
__device__ inline void TakeParts(float4* parts, int first, int last, int strip, uint32_t ring, StripSums<kRows>& sums) {
  constexpr int kPieces = kRows / 8, kPieceBytes = Form::kMultiplyWarps * 32 * 16;        // of all lanes
  constexpr int kBatch = DecodeLayout<kRows, Form>::kScalesAt / (kPieces * kPieceBytes);  // parts under way at once
  static_assert(kBatch >= 1);
  if (first > last) return;
  // Until the other warps have read the ring.
  asm volatile("bar.sync 1, %0;" ::"n"(Form::kMultiplyWarps * 32) : "memory");
  const uint32_t fetched = ring + threadIdx.x * 16;
  for (; first <= last; first += kBatch) {
    const int count = min(kBatch, last - first + 1);
    bool all;
    do {
      for (int i = 0; i < count; ++i) {
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece) {
          FetchPiece(fetched + (i * kPieces + piece) * kPieceBytes,
                     PartOf<kRows, Form>(parts, first + i, strip) + piece * 32);
        }
      }
      AwaitPieces();
      all = true;
      for (int i = 0; i < count; ++i) {
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece) {
          all = all && HasCome(LoadFetched(fetched + (i * kPieces + piece) * kPieceBytes));
        }
      }
    } while (!all);
    for (int i = 0; i < count; ++i) {
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        const float4 v = LoadFetched(fetched + (i * kPieces + piece) * kPieceBytes);
        float(&sum)[4] = sums.values[piece];
        sum[0] += v.x, sum[1] += v.y, sum[2] += v.z, sum[3] += v.w;
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
      ForEach([&](int, int column, int j, int64_t at) { old_[column][j] = static_cast<float*>(args.y)[at]; });
    }
  }

  __device__ void Write(const StripSums<kRows>& sums) const {
    ForEach([&](int i, int column, int j, int64_t at) {
      const float sum = sums.values[column][j];
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
      *y = !args_.accumulate ? value : value + (kReadsEarly ? old_[column][j] : *y);
    });
  }

 private:
  static constexpr bool kReadsEarly = kRows <= (Form::kIsPacked ? 16 : 32);  // more do not fit registers

  // visit(i, out) for the halves i of the strip.
  template <typename Visit>
  __device__ void ForEachOut(const Visit& visit) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
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
          if (row < args_.num_rows) visit(i, column, i * 2 + odd, row * args_.y_stride + out);
        }
      }
    });
  }

  const DecodeMatmulArgs& args_;
  const int first_out_;
  float scale_[2];
  float old_[kReadsEarly ? kRows / 8 : 1][4];
};

}  // namespace winnow::device
