#pragma once
#include <cstdint>

#include "kernels/cuda/attention/attention_fragments.cuh"
#include "kernels/cuda/attention/attention_int8.cuh"
#include "kernels/cuda/attention/attention_shape.cuh"

// The two products of attention over rows in shared memory, of types that are multiplied as floating point.
namespace winnow::device {

// The group's queries as the N operand of all products along head_dim, and what scores have to be multiplied by.
template <int kHeadDim, Dtype kDtype>
struct QueryFragments {
  using Fragment = Fragments<kDtype>;
  static constexpr int kSteps = kHeadDim / 16;

  // Starts to read; `heads` are those of the group, q points to the first.
  __device__ void Load(const float* q, int heads) {
    const int quad = threadIdx.x % 32 / 4, pair = threadIdx.x % 4;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int element = Fragment::KeyElement(step, pair, i / 2, i % 2);
        value[step][i] = quad < heads ? __ldg(q + quad * kHeadDim + element) : 0.0f;
      }
    }
  }
  __device__ void Pack(float scale) {
    const int pair = threadIdx.x % 4;
    float unit = 1;  // f16 ends at 65504: queries are scaled by a power of two to stay below 2
    if constexpr (Fragment::kScaled) {
      float largest = 0;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int i = 0; i < 4; ++i) largest = fmaxf(largest, fabsf(value[step][i]));
      }
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
      const uint32_t exponent = min(max(__float_as_uint(largest) >> 23, 1u), 253u);
      unit = __uint_as_float(exponent << 23);
      const float inverse = __uint_as_float((254u - exponent) << 23);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int i = 0; i < 4; ++i) value[step][i] *= inverse;
      }
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      b[step][0] = Fragment::Pack(value[step][0], value[step][1]);
      b[step][1] = Fragment::Pack(value[step][2], value[step][3]);
    }
    const float to_log2 = scale * 1.4426950408889634f;
#pragma unroll
    for (int head = 0; head < 2; ++head) {
      factor[head] = to_log2 * (Fragment::kScaled ? __shfl_sync(~0u, unit, (2 * pair + head) * 4) : 1.0f);
    }
  }

  float value[kSteps][4];
  uint32_t b[kSteps][2];
  float factor[2];
};
template <int kHeadDim>
struct QueryFragments<kHeadDim, Dtype::kI8> : Int8Queries<kHeadDim> {};

// q . k of the 16 rows from `first` on, of those at `rows`, for 8 heads, as a product's accumulators.
template <int kHeadDim, Dtype kDtype>
__device__ inline void ScoreTile(const QueryFragments<kHeadDim, kDtype>& q, uint32_t rows, uint32_t first,
                                 float (&c)[4]) {
  using Shape = DecodeShape<kHeadDim, kDtype>;
  using Fragment = Fragments<kDtype>;
  const int lane = threadIdx.x % 32;
  float even[4] = {}, odd[4] = {};  // two chains
  const uint32_t row = first + lane % 16;
  if constexpr (kDtype == Dtype::kBf16) {
#pragma unroll
    for (int step = 0; step < kHeadDim / 16; ++step) {
      uint32_t a[4];
      LoadTiles(a, rows + Shape::PieceAt(row, 2 * step + lane / 16));
      Fragment::Multiply(step % 2 == 0 ? even : odd, a, q.b[step][0], q.b[step][1]);
    }
  } else if constexpr (kDtype == Dtype::kI4) {
#pragma unroll
    for (int step = 0; step < kHeadDim / 16; step += 2) {
      uint32_t words[2];
      LoadTiles(words, rows + Shape::PieceAt(row, step / 2));
      uint32_t a[4];
      Fragment::WidenNibbles(words[0], a[0], a[2]);
      Fragment::WidenNibbles(words[1], a[1], a[3]);
      Fragment::Multiply(even, a, q.b[step][0], q.b[step][1]);
      Fragment::WidenNibbles(words[0] >> 8, a[0], a[2]);
      Fragment::WidenNibbles(words[1] >> 8, a[1], a[3]);
      Fragment::Multiply(odd, a, q.b[step + 1][0], q.b[step + 1][1]);
    }
  } else {
#pragma unroll
    for (int step = 0; step < kHeadDim / 16; step += 2) {
      uint32_t words[4];
      LoadTiles(words, rows + Shape::PieceAt(row, step + lane / 16));
      uint32_t a[4];
      Fragment::WidenBytes(words[0], a[0], a[2]);
      Fragment::WidenBytes(words[1], a[1], a[3]);
      Fragment::Multiply(even, a, q.b[step][0], q.b[step][1]);
      Fragment::WidenBytes(words[2], a[0], a[2]);
      Fragment::WidenBytes(words[3], a[1], a[3]);
      Fragment::Multiply(odd, a, q.b[step + 1][0], q.b[step + 1][1]);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) c[i] = even[i] + odd[i];
}

// Products of the weights of one warp's rows of the chunk with their V halves: adds those of head_dim tile `tile` and
// on to c. These rows are those from `first` on at `rows`, their weights begin at `weights`.
template <int kHeadDim, Dtype kDtype, int kTiles>
__device__ inline void WeighValues(uint32_t rows, uint32_t first, int tile, const uint2 (*weights)[32],
                                   float (&c)[kTiles][4]) {
  using Shape = DecodeShape<kHeadDim, kDtype>;
  using Fragment = Fragments<kDtype>;
  const int lane = threadIdx.x % 32;
  constexpr int kFirstPiece = Shape::kHalfBytes / 16;
  uint2 w[Shape::kWarpRowTiles];
#pragma unroll
  for (int t = 0; t < Shape::kWarpRowTiles; ++t) w[t] = weights[t][lane];
  if constexpr (kDtype == Dtype::kBf16) {
    const uint32_t row = first + lane % 8 + lane / 16 * 8, piece = kFirstPiece + 2 * tile + lane / 8 % 2;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      if (Shape::kValueTiles % (kTiles * kWorkWarps) != 0 && tile + i >= Shape::kValueTiles) break;
#pragma unroll
      for (int t = 0; t < Shape::kWarpRowTiles; ++t) {
        uint32_t a[4];
        LoadTilesTransposed(a, rows + Shape::PieceAt(row + t * kTileRows, piece + 2 * i));
        Fragment::Multiply(c[i], a, w[t].x, w[t].y);
      }
    }
  } else {
    static_assert(Shape::kWarpRowTiles == 2);
    constexpr int kPieceTiles = kDtype == Dtype::kI4 ? 2 : 1;  // of head_dim, in 16 bytes
#pragma unroll
    for (int i = 0; i < kTiles; i += kPieceTiles) {
      if (Shape::kValueTiles % (kTiles * kWorkWarps) != 0 && tile + i >= Shape::kValueTiles) break;
      uint32_t words[4];
      LoadTilesTransposed(words, rows + Shape::PieceAt(first + lane, kFirstPiece + (tile + i) / kPieceTiles));
#pragma unroll
      for (int j = 0; j < kPieceTiles && i + j < kTiles; ++j) {
#pragma unroll
        for (int t = 0; t < 2; ++t) {
          uint32_t a[4];
          if constexpr (kDtype == Dtype::kI4) {
            const int shift = (tile + i + j) % 2 * 8;
            Fragment::WidenNibbles(words[2 * t] >> shift, a[0], a[1]);
            Fragment::WidenNibbles(words[2 * t + 1] >> shift, a[2], a[3]);
          } else {
            Fragment::WidenBytes(words[2 * t], a[0], a[1]);
            Fragment::WidenBytes(words[2 * t + 1], a[2], a[3]);
          }
          Fragment::Multiply(c[i + j], a, w[t].x, w[t].y);
        }
      }
    }
  }
}

}  // namespace winnow::device
