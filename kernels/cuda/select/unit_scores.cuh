#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/int8_codes.cuh"

// Scores of a group's queries on tensor cores: sixteen units (keys, or pages' pseudo-keys) are the rows of a product,
// the queries, padded to eight, its columns. A lane loads its part of the units from memory straight into the operand
// registers; for that the head dimension is permuted, alike in units and queries, so that a lane's elements are
// neighbours.
//
// Keys of int8 are multiplied by queries of int8 in integers, and scores have the bits of the CPU backend's
// (KeyScoreParams in kernels/params.h).

namespace winnow::device {

inline constexpr int kScoreWarps = 8;  // of a block; as many runs
inline constexpr int kMaxGroup = 8;
// Columns that one warp scores in a row, and whose softmax is summed in one order.
inline constexpr uint32_t kKeyRun = 128, kPageRun = 64;
inline constexpr uint32_t kGranule = 16;  // rows that a two-stage selection scores or leaves out together
inline constexpr float kLog2E = 1.4426950408889634f;

enum class UnitFormat { kBf16, kF8, kI8 };
constexpr bool HasScales(UnitFormat format) {
  return format != UnitFormat::kBf16;
}
// What the products of a unit's elements are added up in.
template <UnitFormat kFormat>
using UnitSum = std::conditional_t<kFormat == UnitFormat::kI8, int32_t, float>;

// Where the units of one list lie. Column c is unit c, or with `granules` row granules[c / 16] * 16 + c % 16.
struct UnitTable {
  const uint8_t* data;
  const float* scales;     // [num_blocks, 32], scale_stride floats apart; with HasScales
  const uint32_t* blocks;  // of the list; null: 0, 1, ...
  int64_t block_stride;    // bytes
  int64_t unit_stride;
  uint32_t block_shift;  // 2^block_shift units to a block
  const uint32_t* granules = nullptr;
  uint32_t scale_stride = 1;

  __device__ uint32_t Unit(uint32_t column) const {
    return granules == nullptr ? column : granules[column / kGranule] * kGranule + column % kGranule;
  }
  __device__ uint32_t Block(uint32_t unit) const {
    return blocks == nullptr ? unit >> block_shift : blocks[unit >> block_shift];
  }
};

// The queries as the products' second operand, in shared memory.
template <UnitFormat kFormat, int kDim>
struct Operand {
  static constexpr int kRowBytes = kFormat == UnitFormat::kBf16 ? 2 * kDim : kDim;  // of a unit
  static constexpr int kVector = kRowBytes % 64 == 0 ? 16 : 8;                      // bytes that a lane loads at once
  static constexpr int kChunks = kRowBytes / (4 * kVector);
  static constexpr int kElementBytes = kFormat == UnitFormat::kI8 ? 1 : 2;               // of a query
  static constexpr int kLaneBytes = kFormat == UnitFormat::kF8 ? 2 * kVector : kVector;  // 16 or 32; of kI8 8 or 16
  // Padded so that the lanes that read together hit all banks once.
  static constexpr int kPhase = kLaneBytes == 32 ? 16 : kLaneBytes == 16 ? 64 : 32;
  static constexpr int kRowOfQuery = kElementBytes * kDim;
  static constexpr int kStride = kRowOfQuery + (kPhase - kRowOfQuery % 128 + 128) % 128;
  static constexpr int kBytes = kMaxGroup * kStride;
};

__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The power of two at or below the largest magnitude, by which a query in f16 is divided; 1 where its inverse is no
// normal number.
__device__ __forceinline__ float UnitOf(float largest) {
  const uint32_t exponent = __float_as_uint(largest) & 0x7f800000u;
  return exponent >= 1u << 23 && exponent <= 252u << 23 ? __uint_as_float(exponent) : 1;
}

// The scale of a key of int8 as scorers take it: one that is not finite belongs to a key of zeros.
__device__ __forceinline__ float ScoredScale(float scale) {
  return scale < INFINITY ? scale : 0;
}

// Rounds queries [group, dim] to bf16 or, scaled by a power of two that `factors` [8] takes back, to f16; or to int8.
// kPages: of [dim / 2] elements the positive parts, then the negative ones. A warp to a query, those from first_warp
// on; ends without a barrier.
template <UnitFormat kFormat, int kDim, bool kPages>
__device__ void LoadQueries(const float* queries, int group, float scale, uint8_t* operand, float* factors,
                            int first_warp = 0) {
  const int warp = static_cast<int>(threadIdx.x / 32) - first_warp, lane = threadIdx.x % 32;
  if (warp < 0 || warp >= kMaxGroup) return;
  constexpr int kQueryDim = kPages ? kDim / 2 : kDim;
  const float* query = queries + static_cast<int64_t>(warp) * kQueryDim;
  float unit = 1;
  if constexpr (kFormat == UnitFormat::kI8) {
    static_assert(!kPages);
    float own[kDim / 32];
#pragma unroll
    for (int i = 0; i < kDim / 32; ++i) own[i] = warp < group ? query[i * 32 + lane] : 0;
    const Int8Step step(WarpMaxBits(MaxBits(own)));
    const auto codes = step.Quantize(own);
#pragma unroll
    for (int i = 0; i < kDim / 32; ++i) operand[warp * Operand<kFormat, kDim>::kStride + i * 32 + lane] = codes.at[i];
    if (lane == 0) factors[warp] = step.scale * scale;
    return;
  }
  if (kFormat == UnitFormat::kF8 && warp < group) {
    float largest = 0;
#pragma unroll
    for (int d = lane; d < kDim; d += 32) largest = fmaxf(largest, fabsf(query[d]));
    for (int step = 16; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
    unit = UnitOf(largest);
  }
#pragma unroll 8
  for (int d = lane; d < kDim; d += 32) {
    float value = warp < group ? query[d % kQueryDim] : 0;
    if constexpr (kPages) value = (d < kQueryDim ? value < 0 : value > 0) ? 0 : value;
    uint16_t bits;
    if constexpr (kFormat == UnitFormat::kBf16) {
      bits = __bfloat16_as_ushort(__float2bfloat16_rn(value));
    } else {
      bits = __half_as_ushort(__float2half_rn(value / unit));
    }
    *reinterpret_cast<uint16_t*>(operand + warp * Operand<kFormat, kDim>::kStride + 2 * d) = bits;
  }
  if (lane == 0) factors[warp] = unit * scale;
}

template <int kBytes>
struct LaneVector {
  uint32_t words[kBytes / 4];
};

// Units are read once: they are the first to leave the L2, so that scores stay there for the kernel that takes them.
__device__ __forceinline__ uint64_t StreamPolicy() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

template <int kBytes>
__device__ __forceinline__ LaneVector<kBytes> LoadStream(const uint8_t* address, uint64_t policy) {
  LaneVector<kBytes> v;
  if constexpr (kBytes == 16) {
    asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(v.words[0]), "=r"(v.words[1]), "=r"(v.words[2]), "=r"(v.words[3])
                 : "l"(address), "l"(policy));
  } else {
    asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v2.u32 {%0, %1}, [%2], %3;"
                 : "=r"(v.words[0]), "=r"(v.words[1])
                 : "l"(address), "l"(policy));
  }
  return v;
}

template <UnitFormat kFormat>
__device__ __forceinline__ void Multiply(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (kFormat == UnitFormat::kBf16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
        "%3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// The integers of four elements to a word: of two units' words [2 i] and [2 i + 1], by those of a query.
__device__ __forceinline__ void MultiplyInt8(int32_t (&sums)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// A score from a unit's sum: by the query's factor and the unit's scale.
template <UnitFormat kFormat>
__device__ __forceinline__ float ScoreOf(UnitSum<kFormat> sum, float factor, float scale) {
  if constexpr (kFormat == UnitFormat::kI8) return __fmul_rn(static_cast<float>(sum), __fmul_rn(factor, scale));
  float score = sum * factor;
  if constexpr (kFormat == UnitFormat::kF8) score *= scale;
  return score;
}

__device__ __forceinline__ uint32_t HalvesOf(uint16_t two_e4m3) {
  const __half2_raw halves = __nv_cvt_fp8x2_to_halfraw2(two_e4m3, __NV_E4M3);
  return uint32_t{halves.x} | uint32_t{halves.y} << 16;
}

// The sum of 2^(x - largest) over some columns, beside the largest x = score * log2(e).
struct SoftmaxPart {
  float largest, sum;
};
__device__ __forceinline__ SoftmaxPart Joined(SoftmaxPart a, SoftmaxPart b) {
  const float largest = fmaxf(a.largest, b.largest);
  if (largest == -INFINITY) return {largest, 0};
  return {largest, a.sum * Exp2(a.largest - largest) + b.sum * Exp2(b.largest - largest)};
}

}  // namespace winnow::device
