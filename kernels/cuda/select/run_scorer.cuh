#pragma once
#include <cstdint>

#include "kernels/cuda/select/unit_scores.cuh"

// A warp's way through runs of columns: a stage of loads is under way while the one before it is multiplied.

namespace winnow::device {

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
  // Whole lines of 128 bytes are loaded where units consist of such: by two quads of lanes, first of the one's unit,
  // then of the other's, which swap halves before they multiply.
  static constexpr bool kSwaps = kChunks % 2 == 0 && Op::kVector == 16;
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
  float scales[HasScales(kFormat) ? kMaxWarpRuns * kRun : 1];
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
        columns.slots[run * kRun + i + lane_] = table.Block(unit) << 5 | (unit & mask);
      }
    }
    __syncwarp();
  }

  // Has the first stage under way.
  __device__ __forceinline__ void Begin() {
    Load(0, even_);
    if constexpr (HasScales(kFormat)) {
      for (uint32_t i = lane_; i < num_stages_ / kRunStages * kRun; i += 32) {
        const float scale = table_.scales[size_t{columns_.slots[i]} * table_.scale_stride];
        columns_.scales[i] = kFormat == UnitFormat::kI8 ? ScoredScale(scale) : scale;
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
        if constexpr (Stage::kSwaps) {
#pragma unroll
          for (int of_odd = 0; of_odd < 2; ++of_odd) {
            const int column = (Column(stage, t, half) & ~1) + of_odd;
            const uint8_t* unit = Unit(column) + (chunk * 4 + lane_ % 8) * Op::kVector;
#pragma unroll
            for (int c = 0; c < Stage::kChunks; c += 2) {
              to.units[t][half][c + of_odd] = LoadStream<Op::kVector>(unit + c * 4 * Op::kVector, policy_);
            }
          }
        } else {
          const uint8_t* unit = Unit(Column(stage, t, half)) + (chunk * 4 + lane_ % 4) * Op::kVector;
#pragma unroll
          for (int c = 0; c < Stage::kChunks; ++c) {
            to.units[t][half][c] = LoadStream<Op::kVector>(unit + c * 4 * Op::kVector, policy_);
          }
        }
      }
    }
  }
  __device__ __forceinline__ const uint8_t* Unit(int column) const {
    const uint32_t slot = columns_.slots[column];
    return table_.data + (slot >> 5) * table_.block_stride + (slot & 31) * table_.unit_stride;
  }
  // Vectors that hold this quad's half of its own unit's line and of its neighbour's become this unit's two halves.
  __device__ __forceinline__ void Swap(Stage& stage) const {
    const bool odd = (lane_ & 4) != 0;
#pragma unroll
    for (int t = 0; t < Stage::kTiles; ++t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int c = 0; c < Stage::kChunks; c += 2) {
#pragma unroll
          for (int w = 0; w < Op::kVector / 4; ++w) {
            uint32_t& first = stage.units[t][half][c].words[w];
            uint32_t& second = stage.units[t][half][c + 1].words[w];
            const uint32_t other = __shfl_xor_sync(~0u, odd ? first : second, 4);
            first = odd ? other : first;
            second = odd ? second : other;
          }
        }
      }
    }
  }

  __device__ __forceinline__ void Multiply(int stage, Stage& from, const RunOutput& out) {
    if constexpr (Stage::kSwaps) Swap(from);
    const int batch = stage % Stage::kPerTile;
    if (batch == 0) {
#pragma unroll
      for (int t = 0; t < Stage::kTiles; ++t) sums_[t][0] = sums_[t][1] = sums_[t][2] = sums_[t][3] = 0;
    }
#pragma unroll
    for (int c = 0; c < Stage::kChunks; ++c) {
      const uint8_t* query = query_ + (batch * Stage::kChunks + c) * 4 * Op::kLaneBytes;
      if constexpr (kFormat == UnitFormat::kI8) {
#pragma unroll
        for (int part = 0; part < Op::kVector / 8; ++part) {
          const uint2 q = reinterpret_cast<const uint2*>(query)[part];
#pragma unroll
          for (int t = 0; t < Stage::kTiles; ++t) {
            const uint32_t* w0 = from.units[t][0][c].words + 2 * part;
            const uint32_t* w1 = from.units[t][1][c].words + 2 * part;
            MultiplyInt8(sums_[t], {w0[0], w1[0], w0[1], w1[1]}, q.x, q.y);
          }
        }
        continue;
      } else {
#pragma unroll
        for (int part = 0; part < Op::kLaneBytes / 16; ++part) {
          const uint4 q = reinterpret_cast<const uint4*>(query)[part];
#pragma unroll
          for (int t = 0; t < Stage::kTiles; ++t) {
            const uint32_t* w0 = from.units[t][0][c].words;
            const uint32_t* w1 = from.units[t][1][c].words;
            if constexpr (kFormat == UnitFormat::kBf16) {
              device::Multiply<kFormat>(sums_[t], {w0[0], w1[0], w0[1], w1[1]}, q.x, q.y);
              device::Multiply<kFormat>(sums_[t], {w0[2], w1[2], w0[3], w1[3]}, q.z, q.w);
            } else {
#pragma unroll
              for (int i = 0; i < 2; ++i) {
                const uint32_t u0 = w0[2 * part + i], u1 = w1[2 * part + i];
                const uint32_t a[4] = {HalvesOf(static_cast<uint16_t>(u0)), HalvesOf(static_cast<uint16_t>(u1)),
                                       HalvesOf(static_cast<uint16_t>(u0 >> 16)),
                                       HalvesOf(static_cast<uint16_t>(u1 >> 16))};
                device::Multiply<kFormat>(sums_[t], a, i == 0 ? q.x : q.z, i == 0 ? q.y : q.w);
              }
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
    const UnitSum<kFormat>(&sums)[4] = sums_[tile];
    float x[4];  // scores times log2(e), of columns in the softmaxes
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int place = Column(stage, tile, half);
      const uint32_t column = first_ + stage / kRunStages * run_step_ + place % kRun;
      float* scores = out.scores + column;
      float key_scale = 1;
      if constexpr (HasScales(kFormat)) key_scale = columns_.scales[place];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float score = ScoreOf<kFormat>(sums[2 * half + i], factor_[i], key_scale);
        if (column < end_ && query + i < out.group) scores[(query + i) * out.stride] = score;
        x[2 * half + i] = column < out.part_end ? score * kLog2E : -INFINITY;
      }
    }
    if (out.parts == nullptr) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      SoftmaxPart& part = part_[i];
      const float largest = fmaxf(part.largest, fmaxf(x[i], x[2 + i]));
      // A reference that is a number, so that empty columns add 0.
      const float reference = largest == -INFINITY ? 0 : largest;
      part.sum = part.sum * Exp2(part.largest - reference) + Exp2(x[i] - reference) + Exp2(x[2 + i] - reference);
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
  UnitSum<kFormat> sums_[Stage::kTiles][4];
  float factor_[2];
  const uint8_t* query_;
  SoftmaxPart part_[2] = {{-INFINITY, 0}, {-INFINITY, 0}};
};

}  // namespace winnow::device
