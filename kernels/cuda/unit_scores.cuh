#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstdint>

// Scores of a group's queries on tensor cores: sixteen units (keys, or pages' pseudo-keys) are the rows of a product,
// the queries, padded to eight, its columns. A lane loads its part of the units from memory straight into the operand
// registers; for that the head dimension is permuted, alike in units and queries, so that a lane's elements are
// neighbours.

namespace winnow::cuda {

inline constexpr int kSelectThreads = 512;
inline constexpr int kSelectWarps = kSelectThreads / 32;
inline constexpr int kMaxGroup = 8;
inline constexpr uint32_t kScoreRun = 128;  // columns that one warp scores, and whose softmax is summed in one order
inline constexpr uint32_t kGranule = 16;    // rows that a two-stage selection scores or leaves out together
inline constexpr float kLog2E = 1.4426950408889634f;

enum class UnitFormat { kBf16, kF8 };

// Where the units of one list lie. Column c is unit c, or with `granules` row granules[c / 16] * 16 + c % 16.
struct UnitTable {
  const uint8_t* data;
  const float* scales;     // [num_blocks, 32], kF8 only
  const uint32_t* blocks;  // of the list
  int64_t block_stride;    // bytes
  int64_t unit_stride;
  uint32_t block_shift;  // 2^block_shift units to a block
  const uint32_t* granules = nullptr;

  __device__ uint32_t Unit(uint32_t column) const {
    return granules == nullptr ? column : granules[column / kGranule] * kGranule + column % kGranule;
  }
};

// The queries as the products' second operand, in shared memory.
template <UnitFormat kFormat, int kDim>
struct Operand {
  static constexpr int kRowBytes = kFormat == UnitFormat::kBf16 ? 2 * kDim : kDim;  // of a unit
  static constexpr int kVector = kRowBytes % 64 == 0 ? 16 : 8;                      // bytes that a lane loads at once
  static constexpr int kChunks = kRowBytes / (4 * kVector);
  static constexpr int kLaneBytes = kFormat == UnitFormat::kBf16 ? kVector : 2 * kVector;
  // Padded so that the lanes that read together hit all banks once.
  static constexpr int kPhase = kLaneBytes == 32 ? 16 : 64;
  static constexpr int kStride = 2 * kDim + (kPhase - 2 * kDim % 128 + 128) % 128;
  static constexpr int kBytes = kMaxGroup * kStride;
};

__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Rounds queries [group, dim] to bf16 or, scaled by a power of two that `factors` [8] takes back, to f16.
// kPages: of [dim / 2] elements the positive parts, then the negative ones. Ends without a barrier.
template <UnitFormat kFormat, int kDim, bool kPages>
__device__ void LoadQueries(const float* queries, int group, float scale, uint8_t* operand, float* factors) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warp >= kMaxGroup) return;
  constexpr int kQueryDim = kPages ? kDim / 2 : kDim;
  const float* query = queries + static_cast<int64_t>(warp) * kQueryDim;
  float unit = 1;
  if (kFormat == UnitFormat::kF8 && warp < group) {
    float largest = 0;
    for (int d = lane; d < kDim; d += 32) largest = fmaxf(largest, fabsf(query[d]));
    for (int step = 16; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
    const uint32_t exponent = __float_as_uint(largest) & 0x7f800000u;
    // The power of two at or below the largest magnitude; inverses of the extreme ones are not normal numbers.
    if (exponent >= 1u << 23 && exponent <= 252u << 23) unit = __uint_as_float(exponent);
  }
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

template <int kBytes>
__device__ __forceinline__ LaneVector<kBytes> LoadStream(const uint8_t* address) {
  LaneVector<kBytes> v;
  if constexpr (kBytes == 16) {
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.words[0]), "=r"(v.words[1]), "=r"(v.words[2]), "=r"(v.words[3])
                 : "l"(address));
  } else {
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
                 : "=r"(v.words[0]), "=r"(v.words[1])
                 : "l"(address));
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

__device__ __forceinline__ uint32_t HalvesOf(uint16_t two_e4m3) {
  const __half2_raw halves = __nv_cvt_fp8x2_to_halfraw2(two_e4m3, __NV_E4M3);
  return uint32_t{halves.x} | uint32_t{halves.y} << 16;
}

// Products of sixteen units with eight queries: sums[0, 1] are of unit lane / 4 and queries 2 * (lane % 4) + {0, 1},
// sums[2, 3] of the unit eight further. `row0`, `row1`: those two units.
template <UnitFormat kFormat, int kDim>
__device__ __forceinline__ void ScoreTile(const uint8_t* row0, const uint8_t* row1, const uint8_t* operand,
                                          float (&sums)[4]) {
  using Op = Operand<kFormat, kDim>;
  constexpr int kVector = Op::kVector;
  constexpr int kBatch = Op::kChunks < 4 ? Op::kChunks : Op::kChunks % 4 == 0 ? 4 : 3;  // in flight at once
  static_assert(Op::kChunks % kBatch == 0);
  const int lane = threadIdx.x % 32, quad = lane % 4;
  const uint8_t* query = operand + lane / 4 * Op::kStride + quad * Op::kLaneBytes;
  sums[0] = sums[1] = sums[2] = sums[3] = 0;
#pragma unroll
  for (int batch = 0; batch < Op::kChunks; batch += kBatch) {
    LaneVector<kVector> unit0[kBatch], unit1[kBatch];
#pragma unroll
    for (int c = 0; c < kBatch; ++c) {
      const int offset = ((batch + c) * 4 + quad) * kVector;
      unit0[c] = LoadStream<kVector>(row0 + offset);
      unit1[c] = LoadStream<kVector>(row1 + offset);
    }
#pragma unroll
    for (int c = 0; c < kBatch; ++c) {
      const uint8_t* from = query + (batch + c) * 4 * Op::kLaneBytes;
      if constexpr (kFormat == UnitFormat::kBf16) {
        const uint4 q = *reinterpret_cast<const uint4*>(from);
        const uint32_t* w0 = unit0[c].words;
        const uint32_t* w1 = unit1[c].words;
        Multiply<kFormat>(sums, {w0[0], w1[0], w0[1], w1[1]}, q.x, q.y);
        Multiply<kFormat>(sums, {w0[2], w1[2], w0[3], w1[3]}, q.z, q.w);
      } else {
#pragma unroll
        for (int half = 0; half < kVector / 8; ++half) {
          const uint4 q = reinterpret_cast<const uint4*>(from)[half];
#pragma unroll
          for (int word = 0; word < 2; ++word) {
            const uint32_t w0 = unit0[c].words[2 * half + word], w1 = unit1[c].words[2 * half + word];
            const uint32_t a[4] = {HalvesOf(static_cast<uint16_t>(w0)), HalvesOf(static_cast<uint16_t>(w1)),
                                   HalvesOf(static_cast<uint16_t>(w0 >> 16)),
                                   HalvesOf(static_cast<uint16_t>(w1 >> 16))};
            Multiply<kFormat>(sums, a, word == 0 ? q.x : q.z, word == 0 ? q.y : q.w);
          }
        }
      }
    }
  }
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

// One warp scores columns [first, first + kScoreRun) below `end`: scores[query * stride + column]. With `parts` it
// also sums the softmax over those below part_end, [8] parts for the run: bits that depend on the run alone.
template <UnitFormat kFormat, int kDim>
__device__ void ScoreRun(const UnitTable& table, uint32_t first, uint32_t end, const uint8_t* operand,
                         const float* factors, int group, float* scores, int64_t stride, SoftmaxPart* parts,
                         uint32_t part_end) {
  const int lane = threadIdx.x % 32, query = lane % 4 * 2;
  const float factor[2] = {factors[query], factors[query + 1]};
  const uint32_t mask = (1u << table.block_shift) - 1;
  const uint32_t last_tile = min(first + kScoreRun, end);
  SoftmaxPart part[2] = {{-INFINITY, 0}, {-INFINITY, 0}};
  uint32_t unit[2], block[2];
  const auto look_up = [&](uint32_t tile) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      unit[r] = table.Unit(min(tile + lane / 4 + 8 * r, end - 1));
      block[r] = table.blocks[unit[r] >> table.block_shift];
    }
  };
  look_up(first);
#pragma unroll 1
  for (uint32_t tile = first; tile < last_tile; tile += 16) {
    const uint8_t* row[2];
    float key_scale[2] = {1, 1};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      row[r] = table.data + block[r] * table.block_stride + (unit[r] & mask) * table.unit_stride;
      if constexpr (kFormat == UnitFormat::kF8) key_scale[r] = table.scales[block[r] * 32u + (unit[r] & mask)];
    }
    if (tile + 16 < last_tile) look_up(tile + 16);
    float sums[4];
    ScoreTile<kFormat, kDim>(row[0], row[1], operand, sums);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint32_t column = tile + lane / 4 + 8 * r;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& score = sums[2 * r + i];
        score *= factor[i];
        if constexpr (kFormat == UnitFormat::kF8) score *= key_scale[r];
        if (column < end && query + i < group) scores[(query + i) * stride + column] = score;
        score = column < part_end ? score * kLog2E : -INFINITY;
      }
    }
    if (parts == nullptr) continue;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float largest = fmaxf(part[i].largest, fmaxf(sums[i], sums[2 + i]));
      if (largest == -INFINITY) continue;
      part[i].sum =
          part[i].sum * Exp2(part[i].largest - largest) + Exp2(sums[i] - largest) + Exp2(sums[2 + i] - largest);
      part[i].largest = largest;
    }
  }
  if (parts == nullptr) return;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int step = 4; step < 32; step *= 2) {
      const SoftmaxPart other = {__shfl_xor_sync(~0u, part[i].largest, step), __shfl_xor_sync(~0u, part[i].sum, step)};
      part[i] = Joined(part[i], other);
    }
    if (lane < 4) parts[query + i] = part[i];
  }
}

}  // namespace winnow::cuda
