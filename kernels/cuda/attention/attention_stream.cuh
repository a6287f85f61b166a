#pragma once
#include <cstdint>

#include "kernels/cuda/attention/attention_shape.cuh"
#include "kernels/cuda/device/async_copy.cuh"

namespace winnow::device {

// Which stage of shared memory comes next, and how often all have been used.
struct StageCursor {
  uint32_t num_stages;
  uint32_t stage = 0;
  uint32_t phase = 0;
  __device__ void Next() {
    if (++stage == num_stages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

// The warps that bring chunks of rows into shared memory as stages become free, a quarter of each chunk each: in boxes
// by the copy engine where a warp's rows follow each other in the pool, else in pieces of 16 bytes. Where rows lie is
// looked up two chunks ahead. Lane r, and with 16 rows lane r + 16, knows of the warp's row r.
template <int kHeadDim, Dtype kDtype>
class RowStream {
 public:
  using Shape = DecodeShape<kHeadDim, kDtype>;
  using Shared = typename Shape::Shared;
  static constexpr int kRows = Shape::kStreamRows;

  // slots: the pool as a tensor map with boxes of kRows rows, where kBoxes.
  __device__ RowStream(const DecodeAttentionParams& params, const void* slots, Shared& shared, uint32_t num_stages)
      : pool_(static_cast<const char*>(params.slot_pool) + Lane() % Shape::kRowPieces * 16),
        slots_(slots),
        scales_(static_cast<const float2*>(params.kv_scales)),
        shared_(shared),
        cursor_{num_stages} {
    asm volatile("" : "+l"(pool_));  // one multiply-add gives an address
  }

  // Brings the chunks [begin, end) of a list. before(chunk) is called before a chunk is read.
  template <typename Before>
  __device__ void Send(const ListRows& rows, uint32_t begin, uint32_t end, const Before& before) {
    ListRows::Local local[3];
    ListRows::Page page[2];
#pragma unroll
    for (int i = 0; i < 3; ++i) local[i] = rows.Find(Row(begin + i));
#pragma unroll
    for (int i = 0; i < 2; ++i) page[i] = rows.FindPage(local[i]);
    for (uint32_t chunk = begin; chunk < end; ++chunk) {
      // The first round of stages is free: the phase before the first counts as ended.
      WaitForPhase(SharedAddress(&shared_.empty[cursor_.stage]), cursor_.phase ^ 1);
      before(chunk);
      __syncwarp();
      Copy(page[0].slot(), rows.count - min(rows.count, chunk * Shape::kChunkRows + FirstRow()));
      cursor_.Next();
      page[0] = page[1];
      page[1] = rows.FindPage(local[2]);
      local[2] = rows.Find(Row(chunk + 3));
    }
  }

 private:
  __device__ static uint32_t Lane() {
    return threadIdx.x % 32;
  }
  __device__ static uint32_t FirstRow() {
    return threadIdx.x / 32 % kStreamWarps * kRows;
  }
  __device__ static uint32_t Row(uint32_t chunk) {
    return chunk * Shape::kChunkRows + FirstRow() + Lane() % kRows;
  }

  // This warp's rows of the next chunk; `left` counts those from its first to the list's last. Rows behind that become
  // zeros: their weights are zeros too, and the product must be.
  __device__ void Copy(uint32_t slot, uint32_t left) {
    const uint32_t stage = SharedAddress(shared_.stage(cursor_.stage));
    const uint32_t full = SharedAddress(&shared_.full[cursor_.stage]);
    bool pieces = true;
    if constexpr (kUsesBoxes) {
      const uint32_t first = __shfl_sync(~0u, slot, 0);
      if (left >= kRows && __all_sync(~0u, slot == first + Lane() % kRows)) {
        pieces = false;
        if (Lane() == 0) CopyBoxes(first, stage + FirstRow() * 128, full);
      }
    }
    if (pieces) {
      if (left >= kRows) {
        CopyPieces<true>(slot, stage, left);
      } else {
        CopyPieces<false>(slot, stage, left);
      }
    }
    if constexpr (Shape::kScaled) {
      CopyAsync8(stage + Shape::kRowsBytes + (FirstRow() + Lane()) * 8, scales_ + slot, Lane() < left);
    }
    ArriveWithCopies(full);
  }

  __device__ void CopyBoxes(uint32_t first_slot, uint32_t to, uint32_t full) {
    ExpectBytes(full, kRows * Shape::kRowBytes);
#pragma unroll
    for (int column = 0; column < Shape::kColumns; ++column) {
      CopyBox(to + column * Shape::kColumnBytes, slots_, column * 128, first_slot, full);
    }
  }

  template <bool kAllValid>
  __device__ void CopyPieces(uint32_t slot, uint32_t stage, uint32_t left) {
    constexpr int kPieces = Shape::kRowPieces;
#pragma unroll
    for (int i = 0; i < kRows * kPieces / 32; ++i) {
      const uint32_t piece = i * 32 + Lane(), row = piece / kPieces, column = piece % kPieces;
      const uint32_t from = __shfl_sync(~0u, slot, row);
      const char* at = pool_ + static_cast<size_t>(from) * Shape::kRowBytes;  // of this lane's column where it stays
      if constexpr (32 % kPieces != 0 && kPieces % 32 != 0) {
        at += (static_cast<int>(column) - static_cast<int>(Lane() % kPieces)) * 16;
      } else if constexpr (kPieces > 32) {
        at += i % (kPieces / 32) * 512;
      }
      CopyAsync16(stage + Shape::PieceAt(FirstRow() + row, column), at, kAllValid || row < left);
    }
  }

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  static constexpr bool kUsesBoxes = Shape::kBoxes;
#else
  static constexpr bool kUsesBoxes = false;
#endif

  const char* pool_;
  const void* slots_;
  const float2* scales_;
  Shared& shared_;
  StageCursor cursor_;
};

}  // namespace winnow::device
