#pragma once
#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/collective/summands.cuh"
#include "kernels/cuda/matmul/packed_fill.cuh"
#include "kernels/cuda/matmul/packed_fragments.cuh"
#include "kernels/cuda/matmul/sum_pieces.cuh"

// How the four blocks of a team add up what each has of a pass: every strip is finished by one of them, which takes the
// parts of the others in the order of k, however they come. A strip's part has one place for all passes: who leaves one
// waits until the one before is taken.
//
// Blocks of a team wait for each other. They are started one after the other, so that of the teams that have begun at
// most one is incomplete; the others end, and make room for it.
namespace winnow::cuda {

// The block of a team that finishes a strip of a pass: of a warp's strips another one each.
__device__ inline int FinisherOf(int strip) {
  return (strip + strip / kTeamBlocks) % kTeamBlocks;
}

// Whether a lane's piece of 8 rows has any that exist; others are neither left nor taken.
__device__ inline bool HasRows(int column, int num_rows) {
  return column * 8 + static_cast<int>(threadIdx.x) % 4 * 2 < num_rows;
}

// A lane's pieces lie 32 float4 apart: one for each 8 rows.
template <int kRows>
__device__ inline float4* PartOf(float4* parts, int block, int strip) {
  return parts + (int64_t{block} * kPassStrips + strip) * (kRows / 8 * 32) + threadIdx.x % 32;
}

template <int kRows>
__device__ inline void LeavePart(const PackedMatmulArgs& args, int strip, bool is_first,
                                 const float (&sums)[kRows / 8][4]) {
  float4* const part = PartOf<kRows>(args.parts, blockIdx.x, strip);
#pragma unroll
  for (int column = 0; column < kRows / 8; ++column) {
    const float(&v)[4] = sums[column];
    if (!HasRows(column, args.num_rows)) continue;
    while (!is_first && HasCome(LoadPiece(part + column * 32))) {
    }
    StorePiece(part + column * 32,
               make_float4(NeverPlusZero(v[0]), NeverPlusZero(v[1]), NeverPlusZero(v[2]), NeverPlusZero(v[3])));
  }
}

// The sums of the team's blocks in their order, of which `sums` are this block's.
template <int kRows>
__device__ inline void TakeParts(const PackedMatmulArgs& args, int strip, float (&sums)[kRows / 8][4]) {
  constexpr int kColumns = kRows / 8, kAtOnce = kColumns < 4 ? kColumns : 4;
  const int own = blockIdx.x % kTeamBlocks, first_block = blockIdx.x - own;
#pragma unroll
  for (int first = 0; first < kColumns; first += kAtOnce) {
    float4 v[kTeamBlocks][kAtOnce];
    const auto is_taken = [&](int block, int i) { return block != own && HasRows(first + i, args.num_rows); };
    const auto place = [&](int block, int i) {
      return PartOf<kRows>(args.parts, first_block + block, strip) + (first + i) * 32;
    };
    bool all;
    do {
      all = true;
#pragma unroll
      for (int block = 0; block < kTeamBlocks; ++block) {
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          if (is_taken(block, i)) v[block][i] = LoadPiece(place(block, i));
        }
      }
#pragma unroll
      for (int block = 0; block < kTeamBlocks; ++block) {
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          if (is_taken(block, i)) all = all && HasCome(v[block][i]);
        }
      }
    } while (!all);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      float(&of)[4] = sums[first + i];
      const float4 mine = make_float4(of[0], of[1], of[2], of[3]);
      float4 total = own == 0 ? mine : v[0][i];
#pragma unroll
      for (int block = 1; block < kTeamBlocks; ++block) {
        const float4 next = own == block ? mine : v[block][i];
        total = make_float4(total.x + next.x, total.y + next.y, total.z + next.z, total.w + next.w);
      }
      of[0] = total.x, of[1] = total.y, of[2] = total.z, of[3] = total.w;
#pragma unroll
      for (int block = 0; block < kTeamBlocks; ++block) {
        if (is_taken(block, i)) StorePiece(place(block, i), make_float4(0, 0, 0, 0));
      }
    }
  }
}

// Where a strip of y goes. What it is added to, and its scales, are under way from the start.
template <int kRows>
class StripOutput {
 public:
  // `strip`: of the matrix.
  __device__ StripOutput(const PackedMatmulArgs& args, int strip)
      : args_(args), first_out_(strip * kStripOut + threadIdx.x % 32 / 4) {
    if (args.row_scales != nullptr) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (first_out_ + half * 8 < args.out_features) scale_[half] = args.row_scales[first_out_ + half * 8];
      }
    }
    if (kReadsEarly && args.accumulate) {
      ForEach([&](int column, int j, int64_t at) { old_[column][j] = static_cast<float*>(args.y)[at]; });
    }
  }

  __device__ void Write(const float (&sums)[kRows / 8][4]) const {
    ForEach([&](int column, int j, int64_t at) {
      const float sum = sums[column][j];
      const float value = args_.row_scales != nullptr ? __fmul_rn(sum, scale_[j / 2]) : sum;
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

  const PackedMatmulArgs& args_;
  const int first_out_;
  float scale_[2];
  float old_[kReadsEarly ? kRows / 8 : 1][4];
};

}  // namespace winnow::cuda
