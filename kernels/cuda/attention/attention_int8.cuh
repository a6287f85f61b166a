#pragma once
#include <cstdint>

#include "kernels/cuda/attention/attention_fragments.cuh"
#include "kernels/cuda/attention/attention_shape.cuh"

// Attention over rows of int8 in integers, so that nothing of a row is widened: queries, and the weights of a warp's
// rows, are integers of 16 bits with one factor, in two planes of bytes, and the sums of their products with codes are
// exact. A query element errs by at most a 2^16th of the query's largest, and a weight, with the scale of its value, by
// one of the warp's largest.
namespace winnow::device {

// c += a b with m16n8k32: codes on the M side, bytes of an upper plane, whose sign is kSigned, or of a lower one.
template <bool kSigned>
__device__ inline void MultiplyPlane(int32_t (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (kSigned) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// The nearest integer to x, |x| <= 2^15, in the low 16 bits.
__device__ inline uint32_t RoundTo16Bits(float x) {
  return __float_as_uint(__fadd_rn(x, 0x1.8p23f));
}
// What two planes' sums stand for.
__device__ inline float SumOfPlanes(int32_t upper, int32_t lower) {
  return static_cast<float>(upper * 256 + lower);
}

inline constexpr float kMost16Bits = 32767;

// The group's queries as the N operand of all products along head_dim, and what scores have to be multiplied by.
template <int kHeadDim>
struct Int8Queries {
  static constexpr int kSteps = kHeadDim / 32;

  // Starts to read; `heads` are those of the group, q points to the first.
  __device__ void Load(const float* q, int heads) {
    const int quad = threadIdx.x % 32 / 4, pair = threadIdx.x % 4;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float4 four =
            quad < heads ? __ldg(reinterpret_cast<const float4*>(q + quad * kHeadDim + step * 32 + half * 16) + pair)
                         : make_float4(0, 0, 0, 0);
        value[step][half][0] = four.x;
        value[step][half][1] = four.y;
        value[step][half][2] = four.z;
        value[step][half][3] = four.w;
      }
    }
  }
  __device__ void Pack(float scale) {
    const int pair = threadIdx.x % 4;
    float largest = 0;
    bool is_spoilt = false;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float magnitude = fabsf(value[step][i / 4][i % 4]);
        largest = fmaxf(largest, magnitude);
        is_spoilt |= !(magnitude < INFINITY);
      }
    }
    if (is_spoilt) largest = INFINITY;
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
    const bool is_zero = largest < 0x1p-100f;
    const float inverse = is_zero ? 0 : kMost16Bits / largest;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t bits[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) bits[i] = RoundTo16Bits(value[step][half][i] * inverse);
        const uint32_t low = __byte_perm(bits[0], bits[1], 0x5410), high = __byte_perm(bits[2], bits[3], 0x5410);
        upper[step][half] = __byte_perm(low, high, 0x7531);
        lower[step][half] = __byte_perm(low, high, 0x6420);
      }
    }
    // Of a query that is not finite scores are no numbers.
    const float unit = is_zero ? 0 : largest < INFINITY ? largest / kMost16Bits : NAN;
    const float to_log2 = scale * 1.4426950408889634f;
#pragma unroll
    for (int head = 0; head < 2; ++head) factor[head] = to_log2 * __shfl_sync(~0u, unit, (2 * pair + head) * 4);
  }

  float value[kSteps][2][4];
  uint32_t upper[kSteps][2], lower[kSteps][2];
  float factor[2];
};

// As ScoreTile: the codes of sixteen keys times the queries' integers.
template <int kHeadDim>
__device__ inline void ScoreInt8Tile(const Int8Queries<kHeadDim>& q, uint32_t rows, uint32_t first, float (&c)[4]) {
  using Shape = DecodeShape<kHeadDim, Dtype::kI8>;
  const int lane = threadIdx.x % 32;
  const uint32_t row = first + lane % 16;
  int32_t upper[4] = {}, lower[4] = {};
#pragma unroll
  for (int step = 0; step < kHeadDim / 32; ++step) {
    uint32_t codes[4];
    LoadTiles(codes, rows + Shape::PieceAt(row, 2 * step + lane / 16));
    MultiplyPlane<true>(upper, codes, q.upper[step][0], q.upper[step][1]);
    MultiplyPlane<false>(lower, codes, q.lower[step][0], q.lower[step][1]);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) c[i] = SumOfPlanes(upper[i], lower[i]);
}

// The weights of a warp's 32 rows for the product with V: rows 2 pair, 2 pair + 1 and the same of the tile of eight
// rows behind are a word's bytes. x, y: the upper plane of the first and of the second 16 rows; z, w: the lower one.
// s[tile of 16 rows][key: quad, quad + 8][head: 2 pair, 2 pair + 1] are at most kMost16Bits, and not negative.
__device__ inline uint4 PackInt8Weights(const float (&s)[2][4]) {
  uint32_t tiles[4];
#pragma unroll
  for (int t = 0; t < 4; ++t) {
    const float(&tile)[4] = s[t / 2];
    tiles[t] = TransposeTile(__byte_perm(RoundTo16Bits(tile[t % 2 * 2]), RoundTo16Bits(tile[t % 2 * 2 + 1]), 0x5410));
  }
  return {__byte_perm(tiles[0], tiles[1], 0x7531), __byte_perm(tiles[2], tiles[3], 0x7531),
          __byte_perm(tiles[0], tiles[1], 0x6420), __byte_perm(tiles[2], tiles[3], 0x6420)};
}

// As WeighValues, of one warp's 32 rows.
template <int kHeadDim, int kTiles>
__device__ inline void WeighInt8Values(uint32_t rows, uint32_t first, int tile, const uint4& weights,
                                       float (&c)[kTiles][4]) {
  using Shape = DecodeShape<kHeadDim, Dtype::kI8>;
  constexpr int kFirstPiece = Shape::kHalfBytes / 16;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    if (Shape::kValueTiles % (kTiles * kWorkWarps) != 0 && tile + i >= Shape::kValueTiles) break;
    uint32_t words[4];
    LoadTilesTransposed(words, rows + Shape::PieceAt(first + lane, kFirstPiece + tile + i));
    const uint32_t a[4] = {__byte_perm(words[0], words[1], 0x6420), __byte_perm(words[0], words[1], 0x7531),
                           __byte_perm(words[2], words[3], 0x6420), __byte_perm(words[2], words[3], 0x7531)};
    int32_t upper[4] = {}, lower[4] = {};
    MultiplyPlane<false>(upper, a, weights.x, weights.y);
    MultiplyPlane<false>(lower, a, weights.z, weights.w);
#pragma unroll
    for (int k = 0; k < 4; ++k) c[i][k] = SumOfPlanes(upper[k], lower[k]);
  }
}

}  // namespace winnow::device
