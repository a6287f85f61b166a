#pragma once
#include <cuda_runtime.h>

#include "kernels/device/params/cache.h"

// What the kernel that assigns slots is made of: exchange between warps, the selection as a set, and four slots of a
// pool.
namespace winnow::device {

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

// The selection as a set: of each 32 positions, which are selected, and which entry of the selection the first of them
// is. The selection is in order, so that the others follow.
struct SelectedSet {
  struct Word {
    uint32_t bits;
    uint32_t first_entry;  // undefined where bits is 0
  };
  Word* words;

  // Entry `entry`, after `previous` (kAbsent: it is the first).
  __device__ void Insert(uint32_t entry, uint32_t position, uint32_t previous) const {
    Word& word = words[position / 32];
    atomicOr(&word.bits, 1u << position % 32);
    if (previous == kAbsent || previous / 32 != position / 32) word.first_entry = entry;
  }
  // The entry of a position, kAbsent where it is not selected.
  __device__ uint32_t Find(uint32_t position) const {
    const uint2 word = reinterpret_cast<const uint2*>(words)[position / 32];
    const uint32_t bit = 1u << position % 32;
    return (word.x & bit) != 0 ? word.y + __popc(word.x & (bit - 1)) : kAbsent;
  }
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
  uint32_t last_plan[4];
  uint32_t age[4];
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

// Also notes at each selected entry which slot holds it.
__device__ inline FourSlots ClassifySlots(const SlotWords& words, const SelectedSet& set, uint32_t first,
                                          uint32_t pool_slots, uint32_t plan, uint32_t* slot_of_entry) {
  const uint32_t position[4] = {words.position.x, words.position.y, words.position.z, words.position.w};
  FourSlots slots = {{words.last_plan.x, words.last_plan.y, words.last_plan.z, words.last_plan.w}, {}, 0, 0};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const bool holds = position[i] != kAbsent;
    const uint32_t entry = holds ? set.Find(position[i]) : kAbsent;
    if (entry != kAbsent) slot_of_entry[entry] = first + i;
    slots.free |= static_cast<uint32_t>(!holds && first + i < pool_slots) << i;
    slots.selected |= static_cast<uint32_t>(entry != kAbsent) << i;
    slots.age[i] = holds && entry == kAbsent ? min(plan - slots.last_plan[i], kAbsent - 2) + 1 : 0;
  }
  return slots;
}

// The slots of `changed` were selected by this plan.
__device__ inline void StorePlan(const ResidencyList& list, const FourSlots& slots, uint32_t first, uint32_t changed,
                                 uint32_t plan) {
  if (changed == 0) return;
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = (changed >> i & 1) != 0 ? plan : slots.last_plan[i];
  if (first + 4 <= list.pool_slots && reinterpret_cast<uintptr_t>(list.last_plan) % 16 == 0) {
    *reinterpret_cast<uint4*>(list.last_plan + first) = {words[0], words[1], words[2], words[3]};
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if ((changed >> i & 1) != 0) list.last_plan[first + i] = plan;
  }
}

}  // namespace winnow::device
