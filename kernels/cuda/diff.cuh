#pragma once
#include <cuda_runtime.h>

#include "kernels/cuda/cache.h"
#include "kernels/cuda/dependent_launch.cuh"

// Which rows of a selection are missing from a pool, and where they go: one thread block per list, all in one launch.
//
// The victims are the v oldest of the slots that hold a row which is not selected. Their number is known before they
// are, so the age that parts them from the rest is found by bisection: counting over registers, one barrier a step,
// about log2 of the greatest age in plans. A histogram would need one atomic per slot on the few ages there are.
namespace winnow::cuda {

inline constexpr uint32_t kSlotsPerThread = 4;  // of a tile
inline constexpr uint32_t kTileSelected = 2048;
inline constexpr uint32_t kAbsent = ~0u;

// What the warps of a block tell each other, a few words at a time. Consecutive uses take different halves, so that one
// barrier each is enough: a warp that writes a word again has passed the barrier of the use between, and all had read
// the word before they came there.
template <int kWarps>
class WarpExchange {
 public:
  static constexpr int kWords = 3;
  using Words = uint32_t[2][kWords][kWarps];
  __device__ explicit WarpExchange(Words& words) : words_(words) {}

  // Lane i gets the values of warp i, 0 beyond the last.
  template <int kCount>
  __device__ void Gather(uint32_t (&values)[kCount]) {
    static_assert(kCount <= kWords);
    uint32_t(&half)[kWords][kWarps] = words_[use_++ % 2];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (threadIdx.x % 32 == 0) half[i][threadIdx.x / 32] = values[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      values[i] = kWarps == 32 || threadIdx.x % 32 < kWarps ? half[i][threadIdx.x % 32] : 0;
    }
  }
  // Sum over all threads.
  __device__ uint32_t Sum(uint32_t value) {
    uint32_t values[1] = {__reduce_add_sync(~0u, value)};
    Gather(values);
    return __reduce_add_sync(~0u, values[0]);
  }

 private:
  Words& words_;
  uint32_t use_ = 0;
};

// Words [first, first + 4) of an array of `size`; `absent` beyond its end.
__device__ inline uint4 LoadFour(const uint32_t* array, uint32_t first, uint32_t size, uint32_t absent) {
  if (first + 4 <= size && reinterpret_cast<uintptr_t>(array) % 16 == 0) {
    return *reinterpret_cast<const uint4*>(array + first);
  }
  const auto load = [&](uint32_t i) { return i < size ? array[i] : absent; };
  return {load(first), load(first + 1), load(first + 2), load(first + 3)};
}

// Four slots of a pool. A slot whose row may go has an age above 0: plans since it was selected, plus 1.
struct FourSlots {
  uint32_t age[4];
  uint32_t position[4];
  uint32_t free;      // bit i: slot i holds nothing
  uint32_t selected;  // bit i: slot i holds a selected row

  __device__ uint32_t CountAtLeast(uint32_t threshold) const {
    uint32_t count = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) count += age[i] >= threshold;
    return count;
  }
};

struct SlotWords {
  uint4 last_plan, position;
  __device__ void Load(const ResidencyList& list, uint32_t first) {
    last_plan = LoadFour(list.last_plan, first, list.pool_slots, 0);
    position = LoadFour(list.position_of, first, list.pool_slots, kAbsent);
  }
};

__device__ inline FourSlots Judge(const SlotWords& words, uint32_t selected_bytes, uint32_t first, uint32_t pool_slots,
                                  uint32_t plan) {
  const uint32_t last_plan[4] = {words.last_plan.x, words.last_plan.y, words.last_plan.z, words.last_plan.w};
  FourSlots slots = {{}, {words.position.x, words.position.y, words.position.z, words.position.w}, 0, 0};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const bool exists = first + i < pool_slots, selected = (selected_bytes >> (8 * i) & 0xff) != 0;
    const bool free = exists && slots.position[i] == kAbsent;
    slots.free |= static_cast<uint32_t>(free) << i;
    slots.selected |= static_cast<uint32_t>(selected) << i;
    slots.age[i] = exists && !free && !selected ? min(plan - last_plan[i], kAbsent - 2) + 1 : 0;
  }
  return slots;
}

// Dynamic shared memory of a launch: what is missing, where it goes, and a byte per slot (it holds a selected row).
struct Missing {
  uint32_t where;  // in the selection
  uint32_t position;
};
struct Target {
  uint32_t slot;
  uint32_t old_position;  // kAbsent: it was free
};
inline size_t DiffSharedBytes(const DiffParams& p) {
  return (sizeof(Missing) + sizeof(Target)) * p.max_budget + (p.max_pool_slots + 15) / 16 * 16;
}

// kTiles tiles of a pool are kept in registers; 0: a pool of any size, whose words are read again in every pass.
template <int kThreads, int kTiles>
__global__ void __launch_bounds__(kThreads, 1024 / kThreads) Diff(const DiffParams p) {
  extern __shared__ uint4 shared[];
  constexpr uint32_t kTileSlots = kThreads * kSlotsPerThread, kSelected = kTileSelected / kThreads;
  __shared__ typename WarpExchange<kThreads / 32>::Words exchange_words;
  WarpExchange<kThreads / 32> warps(exchange_words);
  Missing* const missing_rows = reinterpret_cast<Missing*>(shared);
  Target* const targets = reinterpret_cast<Target*>(missing_rows + p.max_budget);
  uint8_t* const is_selected = reinterpret_cast<uint8_t*>(targets + p.max_budget);
  const uint32_t thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
#pragma unroll 1
  for (uint32_t i = thread; i < (p.max_pool_slots + 15) / 16; i += kThreads) {
    reinterpret_cast<uint4*>(is_selected)[i] = {};
  }
  __syncthreads();
  WaitForInputs();
  LetDependentsStart();

  const size_t row = static_cast<size_t>(blockIdx.x) * p.max_budget;
  const uint32_t plan = p.plan_ptr != nullptr ? *p.plan_ptr : p.plan;
  const ResidencyList list = p.residency[blockIdx.x];
  const uint32_t count = min(p.counts[blockIdx.x], list.pool_slots);
  const uint32_t tiles = (list.pool_slots + kTileSlots - 1) / kTileSlots;
  const uint32_t* const selected = p.selected + row;
  // Words beyond the count are read as well: nothing is known of it yet.
  uint32_t positions[kSelected];
#pragma unroll
  for (uint32_t i = 0; i < kSelected; ++i) {
    const uint32_t at = kSelected * thread + i;
    positions[i] = at < p.max_budget ? selected[at] : kAbsent;
    if (at >= count) positions[i] = kAbsent;
  }

  // Words of the pool are on their way while the selection is looked up.
  SlotWords words[kTiles > 0 ? kTiles : 1];
  const auto first_slot = [&](uint32_t tile) { return tile * kTileSlots + kSlotsPerThread * thread; };
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) words[tile].Load(list, first_slot(tile));

  uint32_t num_missing = 0;
  for (uint32_t begin = 0; begin < count; begin += kTileSelected) {
    uint32_t index[kSelected];
#pragma unroll
    for (uint32_t i = 0; i < kSelected; ++i) index[i] = positions[i] != kAbsent ? list.index_of[positions[i]] : 0;
    uint32_t before = 0, warp_total = 0, ballots[kSelected];
#pragma unroll
    for (uint32_t i = 0; i < kSelected; ++i) {
      ballots[i] = __ballot_sync(~0u, positions[i] != kAbsent && index[i] == kAbsent);
      before += __popc(ballots[i] & ((1u << lane) - 1));
      warp_total += __popc(ballots[i]);
      if (positions[i] != kAbsent && index[i] != kAbsent) {
        is_selected[index[i]] = 1;
        p.pool_indices[row + begin + kSelected * thread + i] = index[i];
      }
    }
    uint32_t totals[1] = {warp_total};
    warps.Gather(totals);
    uint32_t rank = num_missing + before + __reduce_add_sync(~0u, lane < warp ? totals[0] : 0);
#pragma unroll
    for (uint32_t i = 0; i < kSelected; ++i) {
      if ((ballots[i] >> lane & 1) == 0) continue;
      missing_rows[rank] = {begin + kSelected * thread + i, positions[i]};
      p.missing[row + rank] = positions[i];
      ++rank;
    }
    num_missing += __reduce_add_sync(~0u, totals[0]);
    const uint32_t next = begin + kTileSelected + kSelected * thread;
#pragma unroll
    for (uint32_t i = 0; i < kSelected; ++i) positions[i] = next + i < count ? selected[next + i] : kAbsent;
  }

  // The barriers of the exchanges make all of is_selected, then all of missing_rows, visible.
  FourSlots held[kTiles > 0 ? kTiles : 1];
  const auto judge = [&](uint32_t tile, const SlotWords& tile_words) {
    const uint32_t first = first_slot(tile);
    const uint32_t bytes = first < list.pool_slots ? *reinterpret_cast<const uint32_t*>(is_selected + first) : 0;
    return Judge(tile_words, bytes, first, list.pool_slots, plan);
  };
  const auto for_each_tile = [&](auto&& visit) {
    if constexpr (kTiles > 0) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) visit(tile, held[tile]);
    } else {
      for (uint32_t tile = 0; tile < tiles; ++tile) {
        words[0].Load(list, first_slot(tile));
        visit(tile, judge(tile, words[0]));
      }
    }
  };
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) held[tile] = judge(tile, words[tile]);

  uint32_t num_free = 0, greatest = 0, least_below = 0;  // least_below: greatest of ~age
  for_each_tile([&](uint32_t, const FourSlots& slots) {
    num_free += __popc(slots.free);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      greatest = max(greatest, slots.age[i]);
      if (slots.age[i] > 0) least_below = max(least_below, ~slots.age[i]);
    }
  });
  uint32_t totals[3] = {__reduce_add_sync(~0u, num_free), __reduce_max_sync(~0u, greatest),
                        __reduce_max_sync(~0u, least_below)};
  warps.Gather(totals);
  num_free = __reduce_add_sync(~0u, totals[0]);
  const uint32_t num_victims = num_missing > num_free ? num_missing - num_free : 0;

  // threshold: the greatest age that at least num_victims slots have. Slots above it all go, and `ties` of those at it.
  uint32_t threshold = kAbsent, ties = 0;
  if (num_victims > 0) {
    uint32_t high = __reduce_max_sync(~0u, totals[1]), low = ~__reduce_max_sync(~0u, totals[2]);
    uint32_t above = 0;  // slots with an age above `high`
    while (low < high) {
      const uint32_t middle = high - (high - low) / 2;
      uint32_t at_least = 0;
      for_each_tile([&](uint32_t, const FourSlots& slots) { at_least += slots.CountAtLeast(middle); });
      at_least = warps.Sum(at_least);
      if (at_least >= num_victims) {
        low = middle;
      } else {
        high = middle - 1;
        above = at_least;
      }
    }
    threshold = low;
    ties = num_victims - above;
  }

  // Targets in order: free slots, then victims, each by their index. Of each class, how many lie before this thread:
  // three bytes for the warp's lanes, which hold 128 slots.
  uint32_t free_before_tile = 0, above_before_tile = 0, ties_before_tile = 0;
  for_each_tile([&](uint32_t tile, const FourSlots& slots) {
    uint32_t above_mask = 0, tie_mask = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      above_mask |= static_cast<uint32_t>(slots.age[i] > threshold) << i;
      tie_mask |= static_cast<uint32_t>(ties > 0 && slots.age[i] == threshold) << i;
    }
    const uint32_t own = __popc(slots.free) | __popc(above_mask) << 8 | __popc(tie_mask) << 16;
    uint32_t inclusive = own;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const uint32_t other = __shfl_up_sync(~0u, inclusive, distance);
      if (lane >= distance) inclusive += other;
    }
    const uint32_t exclusive = inclusive - own;
    uint32_t tile_totals[1] = {__shfl_sync(~0u, inclusive, 31)};
    warps.Gather(tile_totals);
    const uint32_t all = tile_totals[0], earlier = lane < warp ? all : 0;
    uint32_t free_rank = free_before_tile + (exclusive & 0xff) + __reduce_add_sync(~0u, earlier & 0xff);
    uint32_t above_rank = above_before_tile + (exclusive >> 8 & 0xff) + __reduce_add_sync(~0u, earlier >> 8 & 0xff);
    uint32_t tie_rank = ties_before_tile + (exclusive >> 16) + __reduce_add_sync(~0u, earlier >> 16);
    if (kTiles != 1) {
      free_before_tile += __reduce_add_sync(~0u, all & 0xff);
      above_before_tile += __reduce_add_sync(~0u, all >> 8 & 0xff);
      ties_before_tile += __reduce_add_sync(~0u, all >> 16);
    }
    const uint32_t first = first_slot(tile);
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      const bool is_free = slots.free >> i & 1, is_above = above_mask >> i & 1, is_tie = tie_mask >> i & 1;
      uint32_t target = kAbsent;
      if (is_free) target = free_rank;
      if (is_above || (is_tie && tie_rank < ties)) target = num_free + above_rank + min(tie_rank, ties);
      free_rank += is_free;
      above_rank += is_above;
      tie_rank += is_tie;
      const bool takes = target < num_missing;
      if (takes) targets[target] = {first + i, slots.position[i]};
      if (takes || (slots.selected >> i & 1)) list.last_plan[first + i] = plan;
    }
  });
  __syncthreads();
  for (uint32_t i = thread; i < num_missing; i += kThreads) {
    const Missing comes = missing_rows[i];
    const Target target = targets[i];
    // What goes is not selected, what comes is: no two threads write one word of index_of.
    if (target.old_position != kAbsent) list.index_of[target.old_position] = kAbsent;
    list.index_of[comes.position] = target.slot;
    list.position_of[target.slot] = comes.position;
    p.missing_indices[row + i] = target.slot;
    p.pool_indices[row + comes.where] = target.slot;
  }
  if (thread == 0) p.missing_counts[blockIdx.x] = num_missing;
}

}  // namespace winnow::cuda
