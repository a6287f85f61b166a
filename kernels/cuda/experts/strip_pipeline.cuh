#pragma once
#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/device/row_math.cuh"
#include "kernels/cuda/experts/expert_codes.cuh"
#include "kernels/cuda/matmul/matmul_mma.cuh"
#include "kernels/device/params/experts.h"

// What a warp of a strip of an expert's product does: weights of its share of k come to its registers some steps ahead,
// and are multiplied with rows of x.
namespace winnow::device {

inline constexpr int kStripWarps = 4, kStripThreads = 32 * kStripWarps;
inline constexpr int kStripOutputs = 32;  // two mma tiles: 16 of gate and 16 of up, or 32 of down

// A product of the pairs of each expert. Matrices [rows, in_features] lie one after the other.
struct StripProduct {
  const void* weight;
  const uint8_t* scales;  // of codes (expert_codes.h)
  int matrix_rows;
  int in_features;
  int out_features;   // that come out: of gate and up one half
  const float* bias;  // [experts][matrix_rows]; may be null
  GatedActivation activation;
  const __nv_bfloat16* x;
  bool x_by_row;  // rows of x are those of the pairs; otherwise there is one for each pair
  void* out;      // bf16 of gated ones, else f32
};

// What is added to the sum of a row of an expert's matrix: of gate and up, rows of up lie behind those of gate.
__device__ inline float BiasOf(const StripProduct& p, uint32_t expert, int row) {
  return p.bias == nullptr ? 0.0f : p.bias[static_cast<int64_t>(expert) * p.matrix_rows + row];
}

// Weights are read once a step: they take no place in the L1.
__device__ inline uint4 LoadOnce(const uint8_t* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

// The rows of W of a lane's operands, for 32 bytes of it and its neighbours at a time: 16 bytes of bf16, of which there
// are 8, or a block of codes.
template <bool kCodes>
class StripRows {
 public:
  static constexpr int kPiece = kCodes ? kExpertBlock : 8;
  static constexpr int kStep = 4 * kPiece;  // of the four lanes of a row

  __device__ StripRows(const StripProduct& p, uint32_t expert, int strip, bool gated)
      : matrix_(static_cast<const uint8_t*>(p.weight)), scales_(p.scales) {
    const int line = threadIdx.x % 32 / 4;
    const int64_t first = static_cast<int64_t>(expert) * p.matrix_rows;
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int out = min(strip + (gated ? 0 : tile * 16) + half * 8 + line, p.out_features - 1);
        const int64_t row = first + out + (gated ? tile * p.out_features : 0);
        first_[tile][half] = static_cast<uint32_t>(row * (p.in_features / kPiece));
      }
    }
  }
  __device__ uint4 Weights(int tile, int half, int at) const {
    return LoadOnce(matrix_ + uint64_t{first_[tile][half] + at / kPiece} * 16);
  }
  __device__ uint32_t Scale(int tile, int half, int at) const {
    return __ldg(scales_ + first_[tile][half] + at / kPiece);
  }

 private:
  const uint8_t *matrix_, *scales_;
  uint32_t first_[2][2];  // piece of a lane's rows, of at most 64 GiB
};

// Adds the products of a lane's operands of one step of bf16.
template <int kGroups>
__device__ void MultiplyStep(const uint4 (&a)[2][2], const uint4 (&b)[kGroups], float (&part)[2][kGroups][4]) {
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
    const uint4 &low = a[tile][0], &high = a[tile][1];
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      MultiplyAccumulate(part[tile][group], {low.x, high.x, low.y, high.y}, b[group].x, b[group].y);
      MultiplyAccumulate(part[tile][group], {low.z, high.z, low.w, high.w}, b[group].z, b[group].w);
    }
  }
}

// What a lane holds of W while it is under way: kAhead steps in k, each of which makes room for one kAhead steps on as
// soon as it is multiplied. Of bf16 steps come in twos, which share the lines of a row of W. One group of pairs has its
// x under way, too; of more it is read where it is needed, which the caches and other warps hide. Rows of x are not
// copied to shared memory first: blocks are short, and would wait for that before their first product.
template <int kGroups, bool kCodes, int kBlocks>
class StripPipeline {
 public:
  using Rows = StripRows<kCodes>;
  static constexpr bool kHoldsX = kGroups == 1;
  // What registers have room for with so many blocks on a multiprocessor.
  static constexpr int kAhead = kCodes || kGroups == 4 ? 2 : kHoldsX && kBlocks == 3 ? 6 : 4;
  static constexpr int kTogether = kCodes ? 1 : 2, kStep = Rows::kStep;

  __device__ StripPipeline(const StripProduct& p, uint32_t expert, int strip, bool gated)
      : rows_(p, expert, strip, gated) {
    const int of_warp = (p.in_features + kStep * kStripWarps - 1) / (kStep * kStripWarps) * kStep;
    const int begin = threadIdx.x / 32 * of_warp;
    end_ = min(begin + of_warp, p.in_features);
    at_ = begin + threadIdx.x % 4 * Rows::kPiece;
#pragma unroll
    for (int i = 0; i < kAhead; i += kTogether) LoadWeights(i, at_ + i * kStep);
  }

  // x: the row of the lane's line in each group.
  __device__ void Multiply(const __nv_bfloat16* const (&x)[kGroups], float (&part)[2][kGroups][4]) {
    if constexpr (kHoldsX) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) LoadX(i, x, at_ + i * kStep);
    }
    // All lanes of a warp go on while its first has something left.
    for (const int past = end_ + threadIdx.x % 4 * Rows::kPiece; at_ < past; at_ += kAhead * kStep) {
#pragma unroll
      for (int i = 0; i < kAhead; i += kTogether) {
        if (i > 0 && at_ + i * kStep >= past) break;
#pragma unroll
        for (int j = i; j < i + kTogether; ++j) MultiplyHeld(j, x, part);
        LoadWeights(i, at_ + (kAhead + i) * kStep);
        if constexpr (kHoldsX) {
#pragma unroll
          for (int j = i; j < i + kTogether; ++j) LoadX(j, x, at_ + (kAhead + j) * kStep);
        }
      }
    }
  }

 private:
  static constexpr int kWords = kCodes ? 4 : 1;  // of a lane's piece, each of which meets 16 bytes of x

  __device__ void LoadWeights(int first, int at) {
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          const int k = at + i * kStep;
          weights_[first + i][tile][half] = k < end_ ? rows_.Weights(tile, half, k) : make_uint4(0, 0, 0, 0);
          if constexpr (kCodes) scales_[first + i][tile][half] = k < end_ ? rows_.Scale(tile, half, k) : 0;
        }
      }
    }
  }
  __device__ void LoadX(int i, const __nv_bfloat16* const (&x)[kGroups], int at) {
#pragma unroll
    for (int word = 0; word < kWords; ++word) x_[i][word] = ReadX(x[0], at, word);
  }
  __device__ uint4 ReadX(const __nv_bfloat16* x, int at, int word) const {
    return at < end_ ? *reinterpret_cast<const uint4*>(x + at + word * 8) : make_uint4(0, 0, 0, 0);
  }

  __device__ void MultiplyHeld(int i, const __nv_bfloat16* const (&x)[kGroups], float (&part)[2][kGroups][4]) const {
    uint32_t factors[2][2];
    if constexpr (kCodes) {
#pragma unroll
      for (int row = 0; row < 4; ++row) factors[row / 2][row % 2] = CodeFactor(scales_[i][row / 2][row % 2]);
    }
#pragma unroll
    for (int word = 0; word < kWords; ++word) {
      uint4 b[kGroups];
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        b[group] = kHoldsX ? x_[i][word] : ReadX(x[group], at_ + i * kStep, word);
      }
      if constexpr (kCodes) {
        uint4 a[2][2];
#pragma unroll
        for (int row = 0; row < 4; ++row) {
          const uint4& block = weights_[i][row / 2][row % 2];
          const uint32_t of_word = word == 0 ? block.x : word == 1 ? block.y : word == 2 ? block.z : block.w;
          a[row / 2][row % 2] = CodesOfWord(of_word, factors[row / 2][row % 2]);
        }
        MultiplyStep(a, b, part);
      } else {
        MultiplyStep(weights_[i], b, part);
      }
    }
  }

  const Rows rows_;
  int at_, end_;  // of the lane's next step; of the warp's share of k
  uint4 weights_[kAhead][2][2];
  uint32_t scales_[kCodes ? kAhead : 1][2][2];
  uint4 x_[kHoldsX ? kAhead : 1][kWords];
};

}  // namespace winnow::device
