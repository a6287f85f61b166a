#pragma once
#include <cuda_runtime.h>

#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/rows/assign_slots_parts.cuh"
#include "kernels/device/params/cache.h"
#include "kernels/device/params/predict.h"

// Which rows of a selection are missing from a pool, and where they go: one thread block per list, all in one launch.
//
// The pool is joined with the selection from its side: every slot asks a bitmap in shared memory whether the position
// it holds is selected, and as which entry. So global memory is read and written in order only, and no table by
// position is kept.
//
// The victims are the v oldest of the slots that hold a row which is not selected. Their number is known before they
// are, so the age that parts them from the rest is found by bisection: counting over registers, one barrier a step,
// about log2 of the greatest age in plans. A histogram would need one atomic per slot on the few ages there are.
namespace winnow::device {

inline constexpr uint32_t kSlotsPerThread = 4;  // of a tile
inline constexpr uint32_t kTileSelected = 2048;

// Dynamic shared memory of a launch: the selection as a set, the slot of each entry (kMissing + rank where no slot
// holds it), and the slots that missing rows go to.
inline constexpr uint32_t kMissing = 1u << 31;
__host__ __device__ constexpr uint32_t SetWords(const AssignSlotsParams& p) {
  return (p.max_positions + 63) / 64 * 2;
}
inline size_t AssignSlotsSharedBytes(const AssignSlotsParams& p) {
  return sizeof(SelectedSet::Word) * SetWords(p) + 2 * sizeof(uint32_t) * ((p.max_budget + 3) / 4 * 4);
}

// kTiles tiles of a pool are kept in registers; 0: a pool of any size, whose words are read again in every pass.
template <int kThreads, int kTiles>
__global__ void __launch_bounds__(kThreads, 1024 / kThreads) AssignSlots(const AssignSlotsParams p) {
  extern __shared__ uint4 shared[];
  constexpr uint32_t kTileSlots = kThreads * kSlotsPerThread, kSelected = kTileSelected / kThreads;
  __shared__ typename WarpExchange<kThreads / 32>::Words exchange_words;
  WarpExchange<kThreads / 32> warps(exchange_words);
  const SelectedSet set = {reinterpret_cast<SelectedSet::Word*>(shared)};
  uint32_t* const slot_of_entry = reinterpret_cast<uint32_t*>(set.words + SetWords(p));
  uint32_t* const target_slots = slot_of_entry + (p.max_budget + 3) / 4 * 4;
  const uint32_t thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
#pragma unroll 1
  for (uint32_t i = thread; i < SetWords(p) / 2; i += kThreads) shared[i] = {};
#pragma unroll 1
  for (uint32_t i = thread; i < (p.max_budget + 3) / 4; i += kThreads) {
    reinterpret_cast<uint4*>(slot_of_entry)[i] = {kMissing, kMissing, kMissing, kMissing};
  }
  __syncthreads();
  WaitForInputs();
  LetDependentsStart();

  const size_t row = static_cast<size_t>(blockIdx.x) * p.max_budget;
  const uint32_t plan = p.plan_ptr != nullptr ? *p.plan_ptr : p.plan;
  if (p.list_positions != nullptr && p.list_positions[blockIdx.x] == kNoPosition) {
    if (thread == 0) p.missing_counts[blockIdx.x] = 0;
    return;
  }
  const ResidencyList list = p.residency[blockIdx.x];
  if (list.position_of == nullptr) {
    for (uint32_t entry = thread; entry < p.counts[blockIdx.x]; entry += kThreads) {
      p.pool_indices[row + entry] = p.selected[row + entry];
    }
    if (thread == 0) p.missing_counts[blockIdx.x] = 0;
    return;
  }
  const uint32_t count = min(p.counts[blockIdx.x], list.pool_slots);
  const uint32_t tiles = (list.pool_slots + kTileSlots - 1) / kTileSlots;
  const uint32_t* const selected = p.selected + row;
  // Entries beyond the count are read as well, for nothing is known of it yet.
  uint32_t positions[kSelected], previous[kSelected];
#pragma unroll
  for (uint32_t i = 0; i < kSelected; ++i) {
    const uint32_t entry = i * kThreads + thread;
    positions[i] = entry < p.max_budget ? selected[entry] : kAbsent;
    previous[i] = entry > 0 && entry < p.max_budget ? selected[entry - 1] : kAbsent;
  }
  // Words of the pool are on their way while the set is made.
  SlotWords words[kTiles > 0 ? kTiles : 1];
  const auto first_slot = [&](uint32_t tile) { return tile * kTileSlots + kSlotsPerThread * thread; };
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) words[tile].Load(list, first_slot(tile));
#pragma unroll
  for (uint32_t i = 0; i < kSelected; ++i) {
    const uint32_t entry = i * kThreads + thread;
    if (entry < count) set.Insert(entry, positions[i], previous[i]);
  }
  for (uint32_t entry = kTileSelected + thread; entry < count; entry += kThreads) {
    set.Insert(entry, selected[entry], selected[entry - 1]);
  }
  __syncthreads();

  FourSlots held[kTiles > 0 ? kTiles : 1];
  const auto for_each_tile = [&](auto&& visit) {
    if constexpr (kTiles > 0) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) visit(tile, held[tile]);
    } else {
      for (uint32_t tile = 0; tile < tiles; ++tile) {
        words[0].Load(list, first_slot(tile));
        // What is noted again is noted already: nobody else writes or clears it before the last pass reads it.
        visit(tile, ClassifySlots(words[0], set, first_slot(tile), list.pool_slots, plan, slot_of_entry));
      }
    }
  };
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    held[tile] = ClassifySlots(words[tile], set, first_slot(tile), list.pool_slots, plan, slot_of_entry);
  }
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
  warps.Gather(totals);  // its barrier shows all of slot_of_entry
  num_free = __reduce_add_sync(~0u, totals[0]);

  // Missing entries are numbered in their order; neighbours belong to one thread.
  uint32_t num_missing = 0;
  for (uint32_t begin = 0; begin < count; begin += kTileSelected) {
    uint32_t before = 0, warp_total = 0, ballots[kSelected];
#pragma unroll
    for (uint32_t i = 0; i < kSelected; ++i) {
      const uint32_t entry = begin + kSelected * thread + i;
      ballots[i] = __ballot_sync(~0u, entry < count && slot_of_entry[entry] == kMissing);
      before += __popc(ballots[i] & ((1u << lane) - 1));
      warp_total += __popc(ballots[i]);
    }
    uint32_t warp_totals[1] = {warp_total};
    warps.Gather(warp_totals);
    uint32_t rank = num_missing + before + __reduce_add_sync(~0u, lane < warp ? warp_totals[0] : 0);
#pragma unroll
    for (uint32_t i = 0; i < kSelected; ++i) {
      if ((ballots[i] >> lane & 1) != 0) slot_of_entry[begin + kSelected * thread + i] = kMissing + rank++;
    }
    num_missing += __reduce_add_sync(~0u, warp_totals[0]);
  }
  if (thread == 0) p.missing_counts[blockIdx.x] = num_missing;
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
    uint32_t changed = slots.selected;
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      const bool is_free = slots.free >> i & 1, is_above = above_mask >> i & 1, is_tie = tie_mask >> i & 1;
      uint32_t target = kAbsent;
      if (is_free) target = free_rank;
      if (is_above || (is_tie && tie_rank < ties)) target = num_free + above_rank + min(tie_rank, ties);
      free_rank += is_free;
      above_rank += is_above;
      tie_rank += is_tie;
      if (target < num_missing) {
        target_slots[target] = first + i;
        changed |= 1u << i;
      }
    }
    StorePlan(list, slots, first, changed, plan);
  });
  __syncthreads();
  for (uint32_t entry = thread; entry < count; entry += kThreads) {
    uint32_t slot = slot_of_entry[entry];
    if (slot >= kMissing) {
      const uint32_t rank = slot - kMissing, position = selected[entry];
      slot = target_slots[rank];
      list.position_of[slot] = position;
      p.missing[row + rank] = position;
      p.missing_indices[row + rank] = slot;
    }
    p.pool_indices[row + entry] = slot;
  }
}

}  // namespace winnow::device
