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

inline constexpr int kScoreWarps = 8;  // of a block; as many runs
inline constexpr int kMaxGroup = 8;
// Columns that one warp scores in a row, and whose softmax is summed in one order.
inline constexpr uint32_t kKeyRun = 128, kPageRun = 64;
inline constexpr uint32_t kGranule = 16;  // rows that a two-stage selection scores or leaves out together
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
// kPages: of [dim / 2] elements the positive parts, then the negative ones. A warp to a query; ends without a barrier.
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

// How a lane's loads of a run of eight tiles, sixteen units each, are cut into stages of about 128 bytes: one is in
// flight while the one before is multiplied.
template <UnitFormat kFormat, int kDim>
struct Stages {
  using Op = Operand<kFormat, kDim>;
  static constexpr int kTileBytes = 2 * Op::kChunks * Op::kVector;                // of a lane
  static constexpr int kTiles = kTileBytes <= 32 ? 4 : kTileBytes <= 64 ? 2 : 1;  // of a stage
  static constexpr int kChunks = kTileBytes <= 128 ? Op::kChunks : Op::kChunks % 4 == 0 ? 4 : 3;
  static constexpr int kPerTile = Op::kChunks / kChunks;
  static_assert(kChunks * kPerTile == Op::kChunks);
  LaneVector<Op::kVector> units[kTiles][2][kChunks];
};

// Where the scores of a list go: scores[query * stride + column], scaled. With `parts` also the softmaxes over the
// columns below part_end, [8] parts for each run: bits that depend on the run alone.
struct RunOutput {
  float* scores;
  int64_t stride;
  int group;
  SoftmaxPart* parts;
  uint32_t part_end;
};

inline constexpr int kMaxWarpRuns = 4;

// What a warp knows of the columns of its runs, in shared memory.
template <UnitFormat kFormat, uint32_t kRun>
struct RunColumns {
  uint32_t slots[kMaxWarpRuns * kRun];  // block << 5 | unit in its block
  float scales[kFormat == UnitFormat::kF8 ? kMaxWarpRuns * kRun : 1];
};

// One warp scores columns [first + i * run_step, first + i * run_step + kRun) below `end`, for i < num_runs.
template <UnitFormat kFormat, int kDim, uint32_t kRun>
class RunScorer {
 public:
  using Op = Operand<kFormat, kDim>;
  using Stage = Stages<kFormat, kDim>;
  static constexpr int kRunStages = static_cast<int>(kRun) / 16 / Stage::kTiles * Stage::kPerTile;
  static_assert(kRunStages % 2 == 0);

  // Looks up where the units lie. Columns behind the end are scored like the last one, and not stored.
  __device__ RunScorer(const UnitTable& table, uint32_t first, uint32_t run_step, int num_runs, uint32_t end,
                       RunColumns<kFormat, kRun>& columns)
      : table_(table),
        columns_(columns),
        first_(first),
        run_step_(run_step),
        end_(end),
        lane_(threadIdx.x % 32),
        num_stages_(num_runs * kRunStages) {
    const uint32_t mask = (1u << table.block_shift) - 1;
#pragma unroll
    for (int run = 0; run < kMaxWarpRuns; ++run) {
      if (run >= num_runs) break;
#pragma unroll
      for (int i = 0; i < static_cast<int>(kRun); i += 32) {
        const uint32_t unit = table.Unit(min(first + run * run_step + i + lane_, end - 1));
        columns.slots[run * kRun + i + lane_] = table.blocks[unit >> table.block_shift] << 5 | (unit & mask);
      }
    }
    __syncwarp();
  }

  // Has the first stage under way.
  __device__ __forceinline__ void Begin() {
    Load(0, even_);
    if constexpr (kFormat == UnitFormat::kF8) {
      for (uint32_t i = lane_; i < num_stages_ / kRunStages * kRun; i += 32) {
        columns_.scales[i] = table_.scales[columns_.slots[i]];
      }
      __syncwarp();
    }
  }
  __device__ __forceinline__ void Finish(const uint8_t* operand, const float* factors, const RunOutput& out) {
    const int query = lane_ % 4 * 2;
    factor_[0] = factors[query], factor_[1] = factors[query + 1];
    query_ = operand + lane_ / 4 * Op::kStride + lane_ % 4 * Op::kLaneBytes;
#pragma unroll 1
    for (int stage = 0; stage < num_stages_; stage += 2) {
      Load(stage + 1, odd_);
      Multiply(stage, even_, out);
      if (stage + 2 < num_stages_) Load(stage + 2, even_);
      Multiply(stage + 1, odd_, out);
      if (out.parts != nullptr && (stage + 2) % kRunStages == 0) StorePart(stage / kRunStages, out);
    }
  }

 private:
  __device__ __forceinline__ int Column(int stage, int tile, int half) const {
    return (stage / Stage::kPerTile * Stage::kTiles + tile) * 16 + half * 8 + lane_ / 4;
  }

  __device__ __forceinline__ void Load(int stage, Stage& to) const {
    const int chunk = stage % Stage::kPerTile * Stage::kChunks;
#pragma unroll
    for (int t = 0; t < Stage::kTiles; ++t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t slot = columns_.slots[Column(stage, t, half)];
        const uint8_t* unit = table_.data + (slot >> 5) * table_.block_stride + (slot & 31) * table_.unit_stride +
                              (chunk * 4 + lane_ % 4) * Op::kVector;
#pragma unroll
        for (int c = 0; c < Stage::kChunks; ++c) {
          to.units[t][half][c] = LoadStream<Op::kVector>(unit + c * 4 * Op::kVector, policy_);
        }
      }
    }
  }

  __device__ __forceinline__ void Multiply(int stage, const Stage& from, const RunOutput& out) {
    const int batch = stage % Stage::kPerTile;
    if (batch == 0) {
#pragma unroll
      for (int t = 0; t < Stage::kTiles; ++t) sums_[t][0] = sums_[t][1] = sums_[t][2] = sums_[t][3] = 0;
    }
#pragma unroll
    for (int c = 0; c < Stage::kChunks; ++c) {
      const uint8_t* query = query_ + (batch * Stage::kChunks + c) * 4 * Op::kLaneBytes;
#pragma unroll
      for (int part = 0; part < Op::kLaneBytes / 16; ++part) {
        const uint4 q = reinterpret_cast<const uint4*>(query)[part];
#pragma unroll
        for (int t = 0; t < Stage::kTiles; ++t) {
          const uint32_t* w0 = from.units[t][0][c].words;
          const uint32_t* w1 = from.units[t][1][c].words;
          if constexpr (kFormat == UnitFormat::kBf16) {
            cuda::Multiply<kFormat>(sums_[t], {w0[0], w1[0], w0[1], w1[1]}, q.x, q.y);
            cuda::Multiply<kFormat>(sums_[t], {w0[2], w1[2], w0[3], w1[3]}, q.z, q.w);
          } else {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
              const uint32_t u0 = w0[2 * part + i], u1 = w1[2 * part + i];
              const uint32_t a[4] = {HalvesOf(static_cast<uint16_t>(u0)), HalvesOf(static_cast<uint16_t>(u1)),
                                     HalvesOf(static_cast<uint16_t>(u0 >> 16)),
                                     HalvesOf(static_cast<uint16_t>(u1 >> 16))};
              cuda::Multiply<kFormat>(sums_[t], a, i == 0 ? q.x : q.z, i == 0 ? q.y : q.w);
            }
          }
        }
      }
    }
    if (batch != Stage::kPerTile - 1) return;
#pragma unroll
    for (int t = 0; t < Stage::kTiles; ++t) Store(stage, t, out);
  }

  __device__ __forceinline__ void Store(int stage, int tile, const RunOutput& out) {
    const int query = lane_ % 4 * 2;
    float(&sums)[4] = sums_[tile];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int place = Column(stage, tile, half);
      const uint32_t column = first_ + stage / kRunStages * run_step_ + place % kRun;
      float* scores = out.scores + column;
      float key_scale = 1;
      if constexpr (kFormat == UnitFormat::kF8) key_scale = columns_.scales[place];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& score = sums[2 * half + i];
        score *= factor_[i];
        if constexpr (kFormat == UnitFormat::kF8) score *= key_scale;
        if (column < end_ && query + i < out.group) scores[(query + i) * out.stride] = score;
        score = column < out.part_end ? score * kLog2E : -INFINITY;
      }
    }
    if (out.parts == nullptr) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      SoftmaxPart& part = part_[i];
      const float largest = fmaxf(part.largest, fmaxf(sums[i], sums[2 + i]));
      // A reference that is a number, so that empty columns add 0.
      const float reference = largest == -INFINITY ? 0 : largest;
      part.sum = part.sum * Exp2(part.largest - reference) + Exp2(sums[i] - reference) + Exp2(sums[2 + i] - reference);
      part.largest = largest;
    }
  }

  __device__ __forceinline__ void StorePart(int run, const RunOutput& out) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int step = 4; step < 32; step *= 2) {
        const SoftmaxPart other = {__shfl_xor_sync(~0u, part_[i].largest, step),
                                   __shfl_xor_sync(~0u, part_[i].sum, step)};
        part_[i] = Joined(part_[i], other);
      }
      if (lane_ < 4) out.parts[(first_ + run * run_step_) / kRun * kMaxGroup + lane_ * 2 + i] = part_[i];
      part_[i] = {-INFINITY, 0};
    }
  }

  const UnitTable table_;
  RunColumns<kFormat, kRun>& columns_;
  const uint32_t first_, run_step_, end_;
  const int lane_;
  const int num_stages_;
  const uint64_t policy_ = StreamPolicy();
  Stage even_, odd_;
  float sums_[Stage::kTiles][4];
  float factor_[2];
  const uint8_t* query_;
  SoftmaxPart part_[2] = {{-INFINITY, 0}, {-INFINITY, 0}};
};

}  // namespace winnow::cuda
