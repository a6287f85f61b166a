#pragma once
#include <cstdint>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/select/unit_scores.cuh"

// A warp's way through tiles of sixteen units: their bytes come through a ring in shared memory, some stages ahead of
// the products, and nothing but the ring is waited for. Registers hold the queries.

namespace winnow::device {

inline constexpr int kRingStages = 3;
inline constexpr int kTileUnits = 16;

// A stage is a slab of a tile: the same bytes of its sixteen units.
template <UnitFormat kFormat, int kDim>
struct UnitSlabs {
  using Op = Operand<kFormat, kDim>;
  static constexpr int kBytes = Op::kRowBytes % 128 == 0 ? 128 : Op::kRowBytes % 64 == 0 ? 64 : Op::kRowBytes;
  static constexpr int kCount = Op::kRowBytes / kBytes;
  static constexpr int kChunks = Op::kChunks / kCount;  // of a lane
  static constexpr int kPieces = kBytes / 16;           // of a unit
  static_assert(kChunks * kCount == Op::kChunks && kPieces % 2 == 0);
  // Odd units swap the halves of their 128 bytes, so that the lanes that read together hit all banks once.
  static constexpr bool kSwaps = kBytes == 128;
};
inline constexpr int kStageBytes = kTileUnits * 128;  // the greatest
inline constexpr int kRingBytes = kRingStages * kStageBytes;

// What a warp knows of the tiles before it, beside the ring.
struct StreamTables {
  uint64_t offsets[2][32];  // of the units of two tiles, and of the two after them, in bytes
  uint32_t slots[2][32];
  float scales[kRingStages + 1][kTileUnits];
};

__device__ __forceinline__ void CopyAsync4(void* to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(SharedAddress(to)), "l"(from) : "memory");
}
__device__ __forceinline__ void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// The tiles first_tile + i * tile_step of the table's columns [0, end). kTogether: the units of a tile lie in one
// block, one after the other. Of columns behind the end the scores are not defined.
template <UnitFormat kFormat, int kDim, bool kTogether>
class UnitStream {
 public:
  using Op = Operand<kFormat, kDim>;
  using Slabs = UnitSlabs<kFormat, kDim>;

  __device__ UnitStream(const UnitTable& table, uint32_t first_tile, uint32_t tile_step, uint32_t end, uint8_t* ring,
                        StreamTables& tables)
      : table_(table),
        ring_(ring),
        tables_(tables),
        first_(first_tile * kTileUnits),
        step_(tile_step * kTileUnits),
        end_(end),
        lane_(threadIdx.x % 32),
        num_tiles_(first_ < end ? (end - first_ + step_ - 1) / step_ : 0) {}

  // Has the first stages under way.
  __device__ __forceinline__ void Begin() {
    if (num_tiles_ == 0) return;
    if constexpr (kTogether) {
      LookUpTiles(0);
    } else {
      const Place first = LookUp(0);
      pending_ = LookUp(1);
      after_ = LookUp(2);
      Publish(0, first);
      __syncwarp();
    }
#pragma unroll
    for (int ahead = 0; ahead < kRingStages - 1; ++ahead) {
      Produce(ahead / Slabs::kCount, ahead % Slabs::kCount);
      __syncwarp();
    }
  }

  // sink.Add(column, scores[2][2]) for a lane's two columns, this one and column + 8, and its two queries, 2 * (lane %
  // 4) and the next; whole warps.
  template <typename Sink>
  __device__ __forceinline__ void Finish(const uint8_t* operand, const float* factors, Sink& sink) {
    if (num_tiles_ == 0) return;
    uint32_t query[Op::kChunks][Op::kLaneBytes / 4];
    const uint8_t* own = operand + lane_ / 4 * Op::kStride + lane_ % 4 * Op::kLaneBytes;
#pragma unroll
    for (int chunk = 0; chunk < Op::kChunks; ++chunk) {
      if constexpr (Op::kLaneBytes == 8) {
        const uint2 words = *reinterpret_cast<const uint2*>(own + chunk * 4 * Op::kLaneBytes);
        query[chunk][0] = words.x;
        query[chunk][1] = words.y;
      }
#pragma unroll
      for (int part = 0; part < Op::kLaneBytes / 16; ++part) {
        const uint4 words = reinterpret_cast<const uint4*>(own + chunk * 4 * Op::kLaneBytes)[part];
        query[chunk][4 * part] = words.x;
        query[chunk][4 * part + 1] = words.y;
        query[chunk][4 * part + 2] = words.z;
        query[chunk][4 * part + 3] = words.w;
      }
    }
    const float factor[2] = {factors[lane_ % 4 * 2], factors[lane_ % 4 * 2 + 1]};
#pragma unroll 1
    for (int tile = 0; tile < num_tiles_; ++tile) {
      UnitSum<kFormat> sums[4] = {};
#pragma unroll
      for (int slab = 0; slab < Slabs::kCount; ++slab) {
        WaitForCopies<kRingStages - 2>();
        __syncwarp();
        constexpr int kAhead = kRingStages - 1;
        Produce(tile + (slab + kAhead) / Slabs::kCount, (slab + kAhead) % Slabs::kCount);
        Multiply(&query[slab * Slabs::kChunks], sums);
      }
      // Of the lane's unit among the first eight, and among the last eight.
      float scores[2][2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float scale = 1;
        if constexpr (HasScales(kFormat)) scale = tables_.scales[tile % (kRingStages + 1)][half * 8 + lane_ / 4];
        if constexpr (kFormat == UnitFormat::kI8) scale = ScoredScale(scale);
#pragma unroll
        for (int i = 0; i < 2; ++i) scores[half][i] = ScoreOf<kFormat>(sums[2 * half + i], factor[i], scale);
      }
      sink.Add(first_ + tile * step_ + lane_ / 4, scores);
    }
  }

 private:
  struct Place {
    uint32_t block, in_block;
  };
  // Where this lane's unit of two tiles lies.
  __device__ __forceinline__ Place LookUp(int batch) const {
    const uint32_t tile = min(2 * batch + lane_ / 16, num_tiles_ - 1);
    const uint32_t unit = table_.Unit(min(first_ + tile * step_ + lane_ % 16, end_ - 1));
    return {table_.Block(unit), unit & ((1u << table_.block_shift) - 1)};
  }
  __device__ __forceinline__ void Publish(int batch, const Place& place) {
    tables_.offsets[batch % 2][lane_] = place.block * table_.block_stride + place.in_block * table_.unit_stride;
    if constexpr (HasScales(kFormat)) tables_.slots[batch % 2][lane_] = place.block << 5 | place.in_block;
  }

  // Where the tiles from `tile` on lie, one to a lane.
  __device__ __forceinline__ void LookUpTiles(int tile) {
    const uint32_t unit = table_.Unit(first_ + min(tile + lane_, num_tiles_ - 1) * step_);
    pending_.block = table_.Block(unit);
    pending_.in_block = unit & ((1u << table_.block_shift) - 1);
  }
  __device__ __forceinline__ void ProduceTogether(int tile, int slab) {
    if (slab == 0 && tile % 32 == 0 && tile > 0) LookUpTiles(tile);
    const uint32_t block = __shfl_sync(~0u, pending_.block, tile % 32);
    const uint32_t in_block = __shfl_sync(~0u, pending_.in_block, tile % 32);
    const uint8_t* const units = table_.data + block * table_.block_stride + in_block * table_.unit_stride;
    const uint32_t stage = SharedAddress(ring_ + produced_ * kStageBytes);
    if constexpr (Slabs::kSwaps) {
      const uint8_t* from = units + (lane_ / 8) * table_.unit_stride + slab * 128 + lane_ % 8 * 16;
      const uint32_t to = stage + lane_ / 8 * 128 + ((lane_ % 8) ^ (lane_ / 8 % 2 << 2)) * 16;
#pragma unroll
      for (int i = 0; i < 4; ++i, from += 4 * table_.unit_stride) CopyAsync16(to + i * 4 * 128, from, true);
    } else {
#pragma unroll
      for (int i = 0; i < Slabs::kPieces / 2; ++i) {
        const int item = i * 32 + lane_, unit = item / Slabs::kPieces, piece = item % Slabs::kPieces;
        CopyAsync16(stage + item * 16, units + unit * table_.unit_stride + slab * Slabs::kBytes + piece * 16, true);
      }
    }
    if constexpr (HasScales(kFormat)) {
      if (slab == 0 && lane_ < kTileUnits) {
        const int64_t unit = (static_cast<int64_t>(block) << table_.block_shift) + in_block + lane_;
        CopyAsync4(&tables_.scales[tile % (kRingStages + 1)][lane_], table_.scales + unit * table_.scale_stride);
      }
    }
  }

  // Copies of one stage, or none behind the last tile.
  __device__ __forceinline__ void Produce(int tile, int slab) {
    if constexpr (kTogether) {
      if (tile < num_tiles_) ProduceTogether(tile, slab);
    } else if (tile < num_tiles_) {
      if (slab == 0 && tile % 2 == 0) {
        Publish(tile / 2 + 1, pending_);
        pending_ = after_;
        after_ = LookUp(tile / 2 + 3);
      }
      const int batch = tile / 2 % 2, of_tile = tile % 2 * 16;
      const uint32_t stage = SharedAddress(ring_ + produced_ * kStageBytes);
      if constexpr (Slabs::kSwaps) {
        const uint8_t* from = table_.data + slab * 128 + lane_ % 8 * 16;
        const uint32_t to = stage + lane_ / 8 * 128 + ((lane_ % 8) ^ (lane_ / 8 % 2 << 2)) * 16;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          CopyAsync16(to + i * 4 * 128, from + tables_.offsets[batch][of_tile + i * 4 + lane_ / 8], true);
        }
      } else {
#pragma unroll
        for (int i = 0; i < Slabs::kPieces / 2; ++i) {
          const int item = i * 32 + lane_, unit = item / Slabs::kPieces, piece = item % Slabs::kPieces;
          CopyAsync16(stage + item * 16,
                      table_.data + tables_.offsets[batch][of_tile + unit] + slab * Slabs::kBytes + piece * 16, true);
        }
      }
      if constexpr (HasScales(kFormat)) {
        if (slab == 0 && lane_ < kTileUnits) {
          CopyAsync4(&tables_.scales[tile % (kRingStages + 1)][lane_],
                     table_.scales + size_t{tables_.slots[batch][of_tile + lane_]} * table_.scale_stride);
        }
      }
    }
    CommitCopies();
    produced_ = produced_ + 1 == kRingStages ? 0 : produced_ + 1;
  }

  __device__ __forceinline__ void Multiply(const uint32_t (*query)[Op::kLaneBytes / 4], UnitSum<kFormat> (&sums)[4]) {
    const uint8_t* stage = ring_ + consumed_ * kStageBytes;
    consumed_ = consumed_ + 1 == kRingStages ? 0 : consumed_ + 1;
    const uint32_t row = lane_ / 4;
#pragma unroll
    for (int c = 0; c < Slabs::kChunks; ++c) {
      uint32_t at = row * Slabs::kBytes + c * 4 * Op::kVector + lane_ % 4 * Op::kVector;
      if constexpr (Slabs::kSwaps) at ^= row % 2 << 6;
      uint32_t words[2][Op::kVector / 4];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint8_t* from = stage + at + half * 8 * Slabs::kBytes;
        if constexpr (Op::kVector == 16) {
          const uint4 v = *reinterpret_cast<const uint4*>(from);
          words[half][0] = v.x, words[half][1] = v.y, words[half][2] = v.z, words[half][3] = v.w;
        } else {
          const uint2 v = *reinterpret_cast<const uint2*>(from);
          words[half][0] = v.x, words[half][1] = v.y;
        }
      }
#pragma unroll
      for (int i = 0; i < Op::kLaneBytes / 8; ++i) {
        if constexpr (kFormat == UnitFormat::kI8) {
          MultiplyInt8(sums, {words[0][2 * i], words[1][2 * i], words[0][2 * i + 1], words[1][2 * i + 1]},
                       query[c][2 * i], query[c][2 * i + 1]);
        } else if constexpr (kFormat == UnitFormat::kBf16) {
          device::Multiply<kFormat>(sums, {words[0][2 * i], words[1][2 * i], words[0][2 * i + 1], words[1][2 * i + 1]},
                                    query[c][2 * i], query[c][2 * i + 1]);
        } else {
          const uint32_t u0 = words[0][i], u1 = words[1][i];
          device::Multiply<kFormat>(
              sums,
              {HalvesOf(static_cast<uint16_t>(u0)), HalvesOf(static_cast<uint16_t>(u1)),
               HalvesOf(static_cast<uint16_t>(u0 >> 16)), HalvesOf(static_cast<uint16_t>(u1 >> 16))},
              query[c][2 * i], query[c][2 * i + 1]);
        }
      }
    }
  }

  const UnitTable table_;
  uint8_t* const ring_;
  StreamTables& tables_;
  const uint32_t first_, step_, end_;
  const int lane_;
  const int num_tiles_;
  Place pending_ = {}, after_ = {};
  int produced_ = 0, consumed_ = 0;
};

}  // namespace winnow::device
