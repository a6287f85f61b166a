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

inline constexpr int kScoreWarps = 4;  // of a block; as many runs
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
__device__ __forceinline__ void LoadQueries(const float* queries, int group, float scale, uint8_t* operand,
                                            float* factors) {
  constexpr int kQueryDim = kPages ? kDim / 2 : kDim;
  const int lane = threadIdx.x % 32;
  for (int row = threadIdx.x / 32; row < kMaxGroup; row += kScoreWarps) {
    const float* query = queries + static_cast<int64_t>(row) * kQueryDim;
    float unit = 1;
    if (kFormat == UnitFormat::kF8 && row < group) {
      float largest = 0;
      for (int d = lane; d < kDim; d += 32) largest = fmaxf(largest, fabsf(query[d]));
      for (int step = 16; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
      const uint32_t exponent = __float_as_uint(largest) & 0x7f800000u;
      // The power of two at or below the largest magnitude; inverses of the extreme ones are not normal numbers.
      if (exponent >= 1u << 23 && exponent <= 252u << 23) unit = __uint_as_float(exponent);
    }
#pragma unroll 4
    for (int d = lane; d < kDim; d += 32) {
      float value = row < group ? query[d % kQueryDim] : 0;
      if constexpr (kPages) value = (d < kQueryDim ? value < 0 : value > 0) ? 0 : value;
      uint16_t bits;
      if constexpr (kFormat == UnitFormat::kBf16) {
        bits = __bfloat16_as_ushort(__float2bfloat16_rn(value));
      } else {
        bits = __half_as_ushort(__float2half_rn(value / unit));
      }
      *reinterpret_cast<uint16_t*>(operand + row * Operand<kFormat, kDim>::kStride + 2 * d) = bits;
    }
    if (lane == 0) factors[row] = unit * scale;
  }
}

template <int kBytes>
struct LaneVector {
  uint32_t words[kBytes / 4];
};

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

// How a run is cut into stages of up to 4 KB: tiles of sixteen units, or pieces of one. Two stages are under way while
// a third is multiplied.
template <UnitFormat kFormat, int kDim>
struct Stages {
  using Op = Operand<kFormat, kDim>;
  static constexpr int kPieceBytes = Op::kRowBytes <= 256 ? Op::kRowBytes : Op::kRowBytes % 256 == 0 ? 256 : 192;
  static constexpr int kPerTile = Op::kRowBytes / kPieceBytes;
  static constexpr int kTiles = kPieceBytes <= 64 ? 4 : kPieceBytes <= 128 ? 2 : 1;  // of a stage
  static constexpr int kChunks = Op::kChunks / kPerTile;
  static constexpr int kBytes = kTiles * 16 * kPieceBytes;
  static constexpr int kInFlight = 3;
  // Neighbouring rows start in different halves of the banks.
  static constexpr bool kSwizzles = kPieceBytes % 128 == 0;
  static_assert(kPieceBytes * kPerTile == Op::kRowBytes && kChunks * kPerTile == Op::kChunks && kBytes % 512 == 0);

  // Where 16 bytes of a row of a stage lie.
  __device__ static __forceinline__ int Place(int row, int sixteen) {
    return row * kPieceBytes + (kSwizzles ? sixteen ^ (row & 1) << 2 : sixteen) * 16;
  }
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

// What a warp keeps in shared memory of its run.
template <UnitFormat kFormat, int kDim, uint32_t kRun>
struct RunMemory {
  alignas(16) uint8_t stages[Stages<kFormat, kDim>::kInFlight][Stages<kFormat, kDim>::kBytes];
  uint32_t slots[kRun];  // block << 5 | unit in its block
  float scales[kFormat == UnitFormat::kF8 ? kRun : 1];
};

// One warp scores columns [first, first + kRun) below `end`.
template <UnitFormat kFormat, int kDim, uint32_t kRun>
class RunScorer {
 public:
  using Op = Operand<kFormat, kDim>;
  using Stage = Stages<kFormat, kDim>;
  using Memory = RunMemory<kFormat, kDim, kRun>;
  static constexpr int kRunStages = static_cast<int>(kRun) / 16 / Stage::kTiles * Stage::kPerTile;

  // Looks up where the units lie. Columns behind the end are scored like the last one, and not stored.
  __device__ RunScorer(const UnitTable& table, uint32_t first, uint32_t end, Memory& memory)
      : table_(table), memory_(memory), first_(first), end_(end), lane_(threadIdx.x % 32) {
    const uint32_t mask = (1u << table.block_shift) - 1;
#pragma unroll
    for (int i = 0; i < static_cast<int>(kRun); i += 32) {
      const uint32_t unit = table.Unit(min(first + i + lane_, end - 1));
      memory.slots[i + lane_] = table.blocks[unit >> table.block_shift] << 5 | (unit & mask);
    }
    __syncwarp();
    const int tiles = (min(kRun, end - first) + 15) / 16;
    num_stages_ = (tiles + Stage::kTiles - 1) / Stage::kTiles * Stage::kPerTile;
  }

  // Has the first stages under way.
  __device__ __forceinline__ void Begin() {
#pragma unroll
    for (int stage = 0; stage < Stage::kInFlight - 1; ++stage) Load(stage);
    if constexpr (kFormat == UnitFormat::kF8) {
#pragma unroll
      for (int i = 0; i < static_cast<int>(kRun); i += 32) {
        memory_.scales[i + lane_] = table_.scales[memory_.slots[i + lane_]];
      }
    }
  }

  __device__ __forceinline__ void Finish(const uint8_t* operand, const float* factors, const RunOutput& out) {
    const int query = lane_ % 4 * 2;
    factor_[0] = factors[query], factor_[1] = factors[query + 1];
    query_ = operand + lane_ / 4 * Op::kStride + lane_ % 4 * Op::kLaneBytes;
    int buffer = 0;
#pragma unroll 1
    for (int stage = 0; stage < num_stages_; ++stage) {
      asm volatile("cp.async.wait_group %0;" ::"n"(Stage::kInFlight - 2) : "memory");
      __syncwarp();  // all lanes' copies have come, and all have read what the next ones overwrite
      Load(stage + Stage::kInFlight - 1);
      MultiplyStage(stage, memory_.stages[buffer], out);
      buffer = buffer == Stage::kInFlight - 1 ? 0 : buffer + 1;
    }
    if (out.parts == nullptr) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int step = 4; step < 32; step *= 2) {
        const SoftmaxPart other = {__shfl_xor_sync(~0u, part_[i].largest, step),
                                   __shfl_xor_sync(~0u, part_[i].sum, step)};
        part_[i] = Joined(part_[i], other);
      }
      if (lane_ < 4) out.parts[first_ / kRun * kMaxGroup + query + i] = part_[i];
    }
  }

 private:
  // Copies a stage, 512 bytes at a time; behind the last one it only counts as another.
  __device__ __forceinline__ void Load(int stage) {
    if (stage < num_stages_) {
      constexpr int kRowSixteens = Stage::kPieceBytes / 16;
      const int unit = stage / Stage::kPerTile * Stage::kTiles * 16, piece = stage % Stage::kPerTile;
      const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(memory_.stages[stage % Stage::kInFlight]));
#pragma unroll
      for (int i = 0; i < Stage::kBytes / 512; ++i) {
        const int row = (i * 32 + lane_) / kRowSixteens, sixteen = (i * 32 + lane_) % kRowSixteens;
        const uint32_t slot = memory_.slots[unit + row];
        const uint8_t* from = table_.data + (slot >> 5) * table_.block_stride + (slot & 31) * table_.unit_stride +
                              piece * Stage::kPieceBytes + sixteen * 16;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + Stage::Place(row, sixteen)), "l"(from)
                     : "memory");
      }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  }

  __device__ __forceinline__ LaneVector<Op::kVector> Vector(const uint8_t* stage, int row, int chunk) const {
    LaneVector<Op::kVector> v;
    if constexpr (Op::kVector == 16) {
      const uint4 words = *reinterpret_cast<const uint4*>(stage + Stage::Place(row, chunk * 4 + lane_ % 4));
      v.words[0] = words.x, v.words[1] = words.y, v.words[2] = words.z, v.words[3] = words.w;
    } else {
      const uint2 words =
          *reinterpret_cast<const uint2*>(stage + row * Stage::kPieceBytes + (chunk * 4 + lane_ % 4) * 8);
      v.words[0] = words.x, v.words[1] = words.y;
    }
    return v;
  }

  __device__ __forceinline__ void MultiplyStage(int stage, const uint8_t* from, const RunOutput& out) {
    const int piece = stage % Stage::kPerTile;
    if (piece == 0) {
#pragma unroll
      for (int t = 0; t < Stage::kTiles; ++t) sums_[t][0] = sums_[t][1] = sums_[t][2] = sums_[t][3] = 0;
    }
#pragma unroll
    for (int c = 0; c < Stage::kChunks; ++c) {
      const uint8_t* query = query_ + (piece * Stage::kChunks + c) * 4 * Op::kLaneBytes;
      uint4 q[Op::kLaneBytes / 16];
#pragma unroll
      for (int part = 0; part < Op::kLaneBytes / 16; ++part) q[part] = reinterpret_cast<const uint4*>(query)[part];
#pragma unroll
      for (int t = 0; t < Stage::kTiles; ++t) {
        const LaneVector<Op::kVector> u0 = Vector(from, t * 16 + lane_ / 4, c);
        const LaneVector<Op::kVector> u1 = Vector(from, t * 16 + lane_ / 4 + 8, c);
        if constexpr (kFormat == UnitFormat::kBf16) {
          Multiply<kFormat>(sums_[t], {u0.words[0], u1.words[0], u0.words[1], u1.words[1]}, q[0].x, q[0].y);
          Multiply<kFormat>(sums_[t], {u0.words[2], u1.words[2], u0.words[3], u1.words[3]}, q[0].z, q[0].w);
        } else {
#pragma unroll
          for (int i = 0; i < Op::kVector / 4; ++i) {
            const uint32_t w0 = u0.words[i], w1 = u1.words[i];
            const uint32_t a[4] = {HalvesOf(static_cast<uint16_t>(w0)), HalvesOf(static_cast<uint16_t>(w1)),
                                   HalvesOf(static_cast<uint16_t>(w0 >> 16)),
                                   HalvesOf(static_cast<uint16_t>(w1 >> 16))};
            Multiply<kFormat>(sums_[t], a, i % 2 == 0 ? q[i / 2].x : q[i / 2].z, i % 2 == 0 ? q[i / 2].y : q[i / 2].w);
          }
        }
      }
    }
    if (piece != Stage::kPerTile - 1) return;
#pragma unroll
    for (int t = 0; t < Stage::kTiles; ++t) Store((stage / Stage::kPerTile * Stage::kTiles + t) * 16, sums_[t], out);
  }

  __device__ __forceinline__ void Store(int tile, float (&sums)[4], const RunOutput& out) {
    const int query = lane_ % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int place = tile + half * 8 + lane_ / 4;
      const uint32_t column = first_ + place;
      float* scores = out.scores + column;
      float key_scale = 1;
      if constexpr (kFormat == UnitFormat::kF8) key_scale = memory_.scales[place];
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

  const UnitTable table_;
  Memory& memory_;
  const uint32_t first_, end_;
  const int lane_;
  int num_stages_;
  float sums_[Stage::kTiles][4];
  float factor_[2];
  const uint8_t* query_;
  SoftmaxPart part_[2] = {{-INFINITY, 0}, {-INFINITY, 0}};
};

}  // namespace winnow::cuda
