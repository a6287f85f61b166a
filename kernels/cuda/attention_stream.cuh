#pragma once
#include <cstdint>

#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/attention_shape.cuh"

namespace winnow::cuda {

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

// The warp that brings chunks of rows into shared memory as stages become free. Where rows lie is looked up two chunks
// ahead. Lane r knows of the chunk's rows r, r + 32, ... What lies behind a list's end are copies of its last row:
// their weights are zeros, and the product must be.
template <int kHeadDim, Dtype kDtype>
class RowStream {
 public:
  using Shape = DecodeShape<kHeadDim, kDtype>;
  using Shared = typename Shape::Shared;

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  static constexpr bool kBulk = true;
#else
  static constexpr bool kBulk = false;
#endif
  // Arrivals that fill a stage.
  static constexpr uint32_t kFullArrivals = kBulk ? 1 + (Shape::kScaled ? 32 : 0) : 32;

  __device__ RowStream(const DecodeAttentionParams& params, Shared& shared, uint32_t num_stages)
      : pool_(static_cast<const char*>(params.slot_pool)),
        scales_(static_cast<const float2*>(params.kv_scales)),
        shared_(shared),
        cursor_{num_stages} {}

  // Brings the chunks [begin, end) of a list. before(chunk) is called before a chunk is read.
  template <typename Before>
  __device__ void Send(const ListRows& rows, uint32_t begin, uint32_t end, const Before& before) {
    Lookup<ListRows::Local> local[3];
    Lookup<ListRows::Page> page[2];
#pragma unroll
    for (int i = 0; i < 3; ++i) Find(rows, begin + i, local[i]);
#pragma unroll
    for (int i = 0; i < 2; ++i) FindPages(rows, local[i], page[i]);
    for (uint32_t chunk = begin; chunk < end; ++chunk) {
      // The first round of stages is free: the phase before the first counts as ended.
      WaitForPhase(SharedAddress(&shared_.empty[cursor_.stage]), cursor_.phase ^ 1);
      before(chunk);
      __syncwarp();
      Copy(page[0]);
      cursor_.Next();
      page[0] = page[1];
      FindPages(rows, local[2], page[1]);
      Find(rows, chunk + 3, local[2]);
    }
  }

 private:
  static constexpr int kLaneRows = Shape::kChunkRows / 32;
  template <typename T>
  struct Lookup {
    T of[kLaneRows];
  };

  __device__ static uint32_t Lane() {
    return threadIdx.x % 32;
  }
  __device__ static void Find(const ListRows& rows, uint32_t chunk, Lookup<ListRows::Local>& local) {
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i) local.of[i] = rows.Find(chunk * Shape::kChunkRows + i * 32 + Lane());
  }
  __device__ static void FindPages(const ListRows& rows, const Lookup<ListRows::Local>& local,
                                   Lookup<ListRows::Page>& page) {
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i) page.of[i] = rows.FindPage(local.of[i]);
  }

  __device__ void Copy(const Lookup<ListRows::Page>& page) {
    const uint32_t stage = SharedAddress(shared_.stage(cursor_.stage));
    const uint32_t full = SharedAddress(&shared_.full[cursor_.stage]);
    if constexpr (kBulk) {
      if (Lane() == 0) ArriveExpecting(full, Shape::kChunkRows * Shape::kRowBytes);
      __syncwarp();
    }
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i) {
      const uint32_t slot = page.of[i].slot(), row = i * 32 + Lane();
      if constexpr (kBulk) {
        CopyBulk(stage + row * Shape::kRowStride, pool_ + static_cast<size_t>(slot) * Shape::kRowBytes,
                 Shape::kRowBytes, full);
      } else {
        CopyPieces(slot, stage + i * 32 * Shape::kRowStride);
      }
      if constexpr (Shape::kScaled) CopyAsync8(stage + Shape::kRowsBytes + row * 8, scales_ + slot, true);
    }
    if constexpr (!kBulk || Shape::kScaled) ArriveWithCopies(full);
  }

  // The lanes' rows, 16 bytes by each lane at a time.
  __device__ void CopyPieces(uint32_t slot, uint32_t to) {
    constexpr uint32_t kPieces = Shape::kRowPieces;
#pragma unroll 8
    for (uint32_t i = 0; i < kPieces; ++i) {
      const uint32_t piece = i * 32 + Lane(), row = piece / kPieces, column = piece % kPieces;
      const uint32_t from = __shfl_sync(~0u, slot, row);
      CopyAsync16(to + row * Shape::kRowStride + column * 16,
                  pool_ + static_cast<size_t>(from) * Shape::kRowBytes + column * 16, true);
    }
  }

  const char* pool_;
  const float2* scales_;
  Shared& shared_;
  StageCursor cursor_;
};

}  // namespace winnow::cuda
