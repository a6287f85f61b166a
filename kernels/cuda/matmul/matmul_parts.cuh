#pragma once
#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/collective/summands.cuh"
#include "kernels/cuda/matmul/matmul_fill.cuh"
#include "kernels/cuda/matmul/sum_pieces.cuh"

// What becomes of the sums of a tile: they are left for another block, or what others have left is added and the result
// is written.
//
// A block waits only for blocks behind it, which leave their parts without waiting for anybody: they are there or come
// as places become free, as blocks are started in order.
namespace winnow::cuda {

// Of the output features of a strip and kRows rows, as mma leaves them in the lanes of a warp.
template <int kRows>
struct TileSums {
  float values[kRows / 8][4];
};

// A lane's pieces lie 32 float4 apart: kRows / 8 of them.
template <int kRows>
__device__ inline float4* PartOf(float4* parts, int block, int strip) {
  constexpr int kPieces = kRows / 8;
  return parts + (int64_t{block} * kTileStrips + strip) * (kPieces * 32) + threadIdx.x % 32;
}

template <int kRows>
__device__ inline void LeavePart(float4* part, const TileSums<kRows>& sums) {
#pragma unroll
  for (int column = 0; column < kRows / 8; ++column) {
    const float(&v)[4] = sums.values[column];
    StorePiece(part + column * 32,
               make_float4(NeverPlusZero(v[0]), NeverPlusZero(v[1]), NeverPlusZero(v[2]), NeverPlusZero(v[3])));
  }
}

// Adds the parts of the blocks [first, last], in this order, as they come.
template <int kRows>
__device__ inline void TakeParts(float4* parts, int first, int last, int strip, TileSums<kRows>& sums) {
  constexpr int kPieces = kRows / 8;
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
          if (first + i <= last) v[i][piece] = LoadPiece(PartOf<kRows>(parts, first + i, strip) + piece * 32);
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
        float(&sum)[4] = sums.values[piece];
        sum[0] += v[i][piece].x, sum[1] += v[i][piece].y, sum[2] += v[i][piece].z, sum[3] += v[i][piece].w;
        StorePiece(PartOf<kRows>(parts, first + i, strip) + piece * 32, make_float4(0, 0, 0, 0));
      }
    }
  }
}

// Where a strip of y goes. What it is added to is under way from the start.
template <int kRows>
class TileOutput {
 public:
  __device__ TileOutput(const DecodeMatmulArgs& args, int tile, int strip)
      : args_(args), first_out_(tile * kTileOut + strip * kStripOut + threadIdx.x % 32 / 4) {
    if (kReadsEarly && args.accumulate) {
      ForEach([&](int column, int j, int64_t at) { old_[column][j] = static_cast<float*>(args.y)[at]; });
    }
  }

  __device__ void Write(const TileSums<kRows>& sums) const {
    ForEach([&](int column, int j, int64_t at) {
      const float value = sums.values[column][j];
      if (args_.summand.num_ranks > 0) {
        StoreSummand(args_.summand, at, value);
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
  static constexpr bool kReadsEarly = kRows <= 32;  // more do not fit registers

  // visit(column, j, index in y) for this lane's elements; j is the place in the mma's accumulators.
  template <typename Visit>
  __device__ void ForEach(const Visit& visit) const {
#pragma unroll
    for (int column = 0; column < kRows / 8; ++column) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int row = column * 8 + threadIdx.x % 4 * 2 + j % 2, out = first_out_ + j / 2 * 8;
        if (row < args_.num_rows && out < args_.out_features) visit(column, j, row * args_.y_stride + out);
      }
    }
  }

  const DecodeMatmulArgs& args_;
  const int first_out_;
  float old_[kReadsEarly ? kRows / 8 : 1][4];
};

}  // namespace winnow::cuda
