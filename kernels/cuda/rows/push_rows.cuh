#pragma once
#include <cuda_runtime.h>

#include "common/base/kv_layout.h"
#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/rows/flags.cuh"
#include "kernels/device/params/cache.h"

// Pushes rows out of blocks into slots. The rows of all lists are numbered through and dealt out to all warps in small
// groups, so that one long list uses the whole device too. Rows are read and written once: they are the first to leave
// the caches.
namespace winnow::device {

inline constexpr int kPushThreads = 256;
inline constexpr int kPushWarps = kPushThreads / 32;
inline constexpr int kPushUnroll = 4;  // accesses of 16 bytes that each lane has under way
inline constexpr int kPushGroup = 4;   // neighbouring rows that a warp takes together
inline constexpr int kMaxPushedLists = 2048;

// Sum of a warp's values up to each lane's.
__device__ inline uint32_t SumUpTo(uint32_t value) {
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const uint32_t other = __shfl_up_sync(~0u, value, distance);
    if (threadIdx.x % 32 >= distance) value += other;
  }
  return value;
}

// Sizes of up to 32 lists added up: ends[i] is where the rows of list i end. By one warp, with 32 words of its own.
__device__ inline uint32_t AddUpFewCounts(const uint32_t* counts, uint32_t num_lists, uint32_t* ends) {
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t sum = SumUpTo(lane < num_lists ? counts[lane] : 0);
  ends[lane] = sum;
  __syncwarp();
  return __shfl_sync(~0u, sum, 31);
}

// The same for any number of lists, by the whole block.
template <int kThreads>
__device__ inline uint32_t AddUpCounts(const uint32_t* counts, uint32_t num_lists, uint32_t* ends) {
  __shared__ uint32_t warp_sums[kThreads / 32];
  uint32_t total = 0;
  for (uint32_t begin = 0; begin < num_lists; begin += kThreads) {
    const uint32_t list = begin + threadIdx.x;
    uint32_t sum = SumUpTo(list < num_lists ? counts[list] : 0);
    if (threadIdx.x % 32 == 31) warp_sums[threadIdx.x / 32] = sum;
    __syncthreads();
    uint32_t all = 0;
#pragma unroll
    for (uint32_t warp = 0; warp < kThreads / 32; ++warp) {
      if (warp < threadIdx.x / 32) sum += warp_sums[warp];
      all += warp_sums[warp];
    }
    if (list < num_lists) ends[list] = total + sum;
    total += all;
    __syncthreads();
  }
  return total;
}

// First list whose rows end after `row`.
__device__ inline uint32_t FindList(const uint32_t* ends, uint32_t num_lists, uint32_t row) {
  uint32_t low = 0, high = num_lists - 1;
  while (low < high) {
    const uint32_t middle = (low + high) / 2;
    if (ends[middle] > row) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

// Row `row` of list `list`: where it is, as a row number of the pool, and where it goes.
struct PushedRow {
  uint32_t stored;
  uint8_t* to;
};
__device__ inline PushedRow Locate(const PushParams& p, uint32_t list, uint32_t row) {
  const size_t entry = static_cast<size_t>(list) * p.max_budget + row;
  const uint32_t position = p.missing[entry];
  const uint32_t block = p.blocks[p.lists[list].first_block + position / kBlockTokens];
  const PushTarget target = p.targets[list];
  const uint32_t local = target.pool_base + p.missing_indices[entry];
  const size_t slot =
      static_cast<size_t>(target.pages[local / kSlotPageTokens]) * kSlotPageTokens + local % kSlotPageTokens;
  return {block * kBlockTokens + position % kBlockTokens, static_cast<uint8_t*>(target.slot_pool) + slot * p.row_bytes};
}

// The selection lists, four words a thread, by the threads that are last to get a row. Lists of nobody have no slots,
// and are somebody else's there.
__device__ inline void SendSelection(const PushParams& p) {
  const uint32_t threads = gridDim.x * kPushThreads;
  const uint32_t fours = (p.max_budget + 3) / 4;
  const bool wide = p.max_budget % 4 == 0;
  for (uint32_t task = (gridDim.x - 1 - blockIdx.x) * kPushThreads + threadIdx.x; task < p.num_lists * fours;
       task += threads) {
    const uint32_t list = task / fours, first = task % fours * 4, count = p.counts[list];
    if (first == 0 && p.targets[list].slot_pool != nullptr) {
      p.peer_counts[static_cast<size_t>(list) * p.peer_count_stride] = count;
    }
    const size_t entry = static_cast<size_t>(list) * p.max_budget + first;
    if (wide && first + 4 <= count) {
      *reinterpret_cast<uint4*>(p.peer_pool_indices + entry) = *reinterpret_cast<const uint4*>(p.pool_indices + entry);
    } else {
      for (uint32_t i = 0; i < 4 && first + i < count; ++i) {
        p.peer_pool_indices[entry + i] = p.pool_indices[entry + i];
      }
    }
  }
}

// kVectors: 16-byte vectors of a row; 0: row_bytes says how many.
template <int kVectors>
__global__ void __launch_bounds__(kPushThreads, 4) PushRows(const PushParams p) {
  __shared__ uint32_t shared_ends[kMaxPushedLists];
  WaitForInputs();
  LetDependentsStart();
  const uint32_t raised = p.raise.flag != nullptr ? *p.raise.value : 0;
  const uint32_t lane = threadIdx.x % 32;
  const bool few = p.num_lists <= 32;
  uint32_t* const ends = shared_ends + (few ? threadIdx.x / 32 * 32 : 0);
  const uint32_t total = few ? AddUpFewCounts(p.missing_counts, p.num_lists, ends)
                             : AddUpCounts<kPushThreads>(p.missing_counts, p.num_lists, ends);
  // Neighbouring groups lie on different multiprocessors, so that a small delta uses many.
  const uint32_t warps = gridDim.x * kPushWarps, warp = threadIdx.x / 32 * gridDim.x + blockIdx.x;
  const uint32_t vectors = kVectors > 0 ? kVectors : p.row_bytes / 16;
  const uint8_t* const pool = static_cast<const uint8_t*>(p.row_pool);
  // A lane looks up one of 32 rows, which are groups of neighbours; the next 32 while these are pushed.
  PushedRow next = {};
  uint32_t next_rows = 0;
  const auto look_up = [&](uint32_t chunk) {
    const uint32_t number =
        ((chunk * (32 / kPushGroup) + lane / kPushGroup) * warps + warp) * kPushGroup + lane % kPushGroup;
    next_rows = __popc(__ballot_sync(~0u, number < total));
    if (number >= total) return;
    const uint32_t list = FindList(ends, p.num_lists, number);
    next = Locate(p, list, number - (list > 0 ? ends[list - 1] : 0));
  };
  look_up(0);
  for (uint32_t chunk = 1; next_rows > 0; ++chunk) {
    const PushedRow own = next;
    const uint32_t rows = next_rows;
    look_up(chunk);
    const uint32_t items = rows * vectors;
    for (uint32_t first = 0; first < items; first += 32 * kPushUnroll) {
      uint4 data[kPushUnroll];
#pragma unroll
      for (int i = 0; i < kPushUnroll; ++i) {
        const uint32_t item = first + 32 * i + lane;
        const uint32_t stored = __shfl_sync(~0u, own.stored, item / vectors);
        if (item < items) {
          data[i] = __ldcs(reinterpret_cast<const uint4*>(pool + static_cast<size_t>(stored) * (vectors * 16)) +
                           item % vectors);
        }
      }
#pragma unroll
      for (int i = 0; i < kPushUnroll; ++i) {
        const uint32_t item = first + 32 * i + lane;
        uint8_t* const to =
            reinterpret_cast<uint8_t*>(__shfl_sync(~0u, reinterpret_cast<unsigned long long>(own.to), item / vectors));
        if (item < items) __stcs(reinterpret_cast<uint4*>(to) + item % vectors, data[i]);
      }
    }
  }
  if (p.peer_pool_indices != nullptr) SendSelection(p);
  if (p.pushed_rows != nullptr && blockIdx.x == 0 && threadIdx.x == 0) {
    *p.pushed_rows += total;  // launches that share a counter follow each other
  }
  if (p.raise.flag == nullptr) return;
  // The barrier hands the block's stores to thread 0, whose fence then covers them.
  __syncthreads();
  if (threadIdx.x != 0) return;
  FenceSystem();
  if (atomicInc(p.done_ctas, gridDim.x - 1) != gridDim.x - 1) return;  // goes round to 0 for the next launch
  StoreRelease(p.raise.flag, raised);
}

}  // namespace winnow::device
