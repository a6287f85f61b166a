#pragma once
#include <cstdint>

#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/attention_shape.cuh"

namespace winnow::cuda {

// Which stage of shared memory comes next, and how often all have been used.
template <int kStages>
struct StageCursor {
  uint32_t stage = 0;
  uint32_t phase = 0;
  __device__ void Next() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

// The warp that brings chunks of rows into shared memory as their stages become free. Where the rows of a chunk lie is
// looked up two chunks ahead. Lane i knows of the rows i, i + 32, ... of a chunk.
template <int kHeadDim, Dtype kDtype>
class RowStream {
 public:
  using Shape = DecodeShape<kHeadDim, kDtype>;
  using Shared = typename Shape::Shared;
  static constexpr int kLaneRows = Shape::kChunkRows / 32;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900 && !defined(NO_RUNS)
  static constexpr bool kRuns = Shape::kRowBytes >= 256;  // each row by the copy engine; shorter ones in pieces
#else
  static constexpr bool kRuns = false;
#endif

  __device__ RowStream(const DecodeAttentionParams& params, Shared& shared)
      : pool_(static_cast<const char*>(params.slot_pool)),
        scales_(static_cast<const float2*>(params.kv_scales)),
        shared_(shared) {}

  // Brings the chunks [begin, end) of a list.
  __device__ void Send(const ListRows& rows, uint32_t begin, uint32_t end) {
    Chunk<ListRows::Local> local[3];
    Chunk<ListRows::Page> page[2];
#pragma unroll
    for (int i = 0; i < 3; ++i) Find(rows, begin + i, local[i]);
#pragma unroll
    for (int i = 0; i < 2; ++i) FindPages(rows, local[i], page[i]);
    for (uint32_t chunk = begin; chunk < end; ++chunk) {
      // The first round of stages is free: the phase before the first counts as ended.
      WaitForPhase(SharedAddress(&shared_.empty[cursor_.stage]), cursor_.phase ^ 1);
      Copy(page[0], rows.count - chunk * Shape::kChunkRows);
      cursor_.Next();
      page[0] = page[1];
      FindPages(rows, local[2], page[1]);
      Find(rows, chunk + 3, local[2]);
    }
  }

 private:
  template <typename T>
  struct Chunk {
    T rows[kLaneRows];
  };

  __device__ static uint32_t Lane() {
    return threadIdx.x % 32;
  }
  __device__ static void Find(const ListRows& rows, uint32_t chunk, Chunk<ListRows::Local>& local) {
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i) local.rows[i] = rows.Find(chunk * Shape::kChunkRows + i * 32 + Lane());
  }
  __device__ static void FindPages(const ListRows& rows, const Chunk<ListRows::Local>& local,
                                   Chunk<ListRows::Page>& page) {
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i) page.rows[i] = rows.FindPage(local.rows[i]);
  }

  // `left` counts the rows from the chunk's first to the list's last. V of rows behind it becomes zeros, as their
  // weights are; nothing else of them is used.
  __device__ void Copy(const Chunk<ListRows::Page>& page, uint32_t left) {
    const uint32_t stage = SharedAddress(shared_.stages[cursor_.stage]);
    const uint32_t full = SharedAddress(&shared_.full[cursor_.stage]);
    if (kRuns && left >= Shape::kChunkRows) {
      ExpectBytes(full, kLaneRows * Shape::kRowBytes);
#pragma unroll
      for (int i = 0; i < kLaneRows; ++i) {
        CopyRun(stage + (i * 32 + Lane()) * Shape::kRowStride,
                pool_ + static_cast<size_t>(page.rows[i].slot()) * Shape::kRowBytes, Shape::kRowBytes, full);
      }
    } else {
#pragma unroll 1
      for (int i = 0; i < kLaneRows; ++i) {
        uint32_t slot = page.rows[0].slot();
#pragma unroll
        for (int j = 1; j < kLaneRows; ++j) slot = i == j ? page.rows[j].slot() : slot;
        CopyPieces(slot, stage + i * 32 * Shape::kRowStride, left - min(left, i * 32));
      }
    }
    if constexpr (Shape::kScaled) {
#pragma unroll
      for (int i = 0; i < kLaneRows; ++i) {
        CopyAsync8(stage + Shape::kRowsBytes + (i * 32 + Lane()) * 8, scales_ + page.rows[i].slot(),
                   i * 32 + Lane() < left);
      }
    }
    ArriveWithCopies(full);
  }

  // 32 rows, of which this lane has the slot of one.
  __device__ void CopyPieces(uint32_t slot, uint32_t to, uint32_t left) {
#pragma unroll
    for (int i = 0; i < Shape::kRowPieces; ++i) {
      const uint32_t piece = i * 32 + Lane(), row = piece / Shape::kRowPieces, column = piece % Shape::kRowPieces;
      const uint32_t from = __shfl_sync(~0u, slot, row);
      CopyAsync16(to + row * Shape::kRowStride + column * 16,
                  pool_ + static_cast<size_t>(from) * Shape::kRowBytes + column * 16, row < left);
    }
  }

  const char* pool_;
  const float2* scales_;
  Shared& shared_;
  StageCursor<Shape::kStages> cursor_;
};

}  // namespace winnow::cuda
