#pragma once
#include <cstdint>

#include "kernels/device/params/attention.h"

namespace winnow::device {

// How a list is cut, which its own count and the type of rows alone decide, so that a row's bits depend on nothing
// else: chunks of so many rows as are worked on at once, splits of equally many chunks, at most 16 of them. Partial
// results are folded from left to right in three levels, chunks into a split, 4 splits into a quarter, quarters into
// the list. A thread block takes one unit, which is a node of one of these levels; which level is a matter of speed
// only, as every level gives the same folds.
inline constexpr uint32_t kMaxSplits = 16;
enum UnitLevel : int { kSplit = 0, kQuarter = 1, kWholeList = 2 };

__host__ __device__ constexpr uint32_t SplitsOfUnit(int level) {
  return level == kSplit ? 1 : level == kQuarter ? 4 : kMaxSplits;
}
__host__ __device__ constexpr uint32_t CeilDiv(uint32_t a, uint32_t b) {
  return (a + b - 1) / b;
}
// Narrow rows come in larger chunks, over which the fixed work of a chunk is spread.
__host__ __device__ constexpr uint32_t ChunkRows(Dtype dtype) {
  return dtype == Dtype::kBf16 ? 64 : 128;
}
inline constexpr uint32_t kMinSplitRows = 128;

struct ListCut {
  __host__ __device__ ListCut(uint32_t count, uint32_t chunk_rows)
      : chunks(CeilDiv(count, chunk_rows)),
        split_chunks(count <= kMaxSplits * kMinSplitRows ? kMinSplitRows / chunk_rows : CeilDiv(chunks, kMaxSplits)),
        splits(CeilDiv(chunks, split_chunks)) {}
  __host__ __device__ uint32_t units(int level) const { return CeilDiv(splits, SplitsOfUnit(level)); }

  uint32_t chunks;
  uint32_t split_chunks;
  uint32_t splits;
};

// A read of global memory that nothing waits for until its value is used, and without a branch.
__device__ inline uint32_t LoadIf(bool condition, const uint32_t* at) {
  uint32_t value;
  asm volatile("{.reg .pred p; setp.ne.u32 p, %2, 0; mov.u32 %0, 0; @p ld.global.b32 %0, [%1];}"
               : "=r"(value)
               : "l"(at), "r"(static_cast<uint32_t>(condition)));
  return value;
}

// Where the rows of one list lie, looked up in two dependent reads. What a read gives is used a step later, so that one
// can be under way while other work is done.
struct ListRows {
  struct Local {  // local index: base + read
    uint32_t base, read;
  };
  struct Page {  // slot: 64 * page + in_page
    uint32_t page, in_page;
    __device__ uint32_t slot() const { return page * 64 + in_page; }
  };

  __device__ ListRows(const DecodeAttentionParams& params, const AttentionList& list)
      : selected(params.selected + list.selected_first),
        pages(params.pages + list.first_page),
        num_pages(list.num_pages),
        sinks(list.sinks),
        selected_end(list.sinks + list.selected_count),
        count(list.count()),
        pool_base(list.pool_base),
        ring_base(list.ring_base),
        ring_tokens(list.ring_tokens),
        ring_first(list.recent_begin < list.ring_tokens ? list.recent_begin : list.recent_begin % list.ring_tokens) {}

  // Has the page table brought into L1 while `selected` is on its way: one of two dependent reads less. By 128 threads.
  __device__ void TouchPages() const {
    constexpr uint32_t kSectorPages = 8;
    const uint32_t at = threadIdx.x % 128 * kSectorPages;
    if (at < num_pages && selected_end > sinks) {
      asm volatile("{.reg .b32 unused; ld.global.b32 unused, [%0];}" ::"l"(pages + at));
    }
  }
  // Rows at and behind `count` give that of the last row: safe to read, and left out later.
  __device__ Local Find(uint32_t row) const {
    const uint32_t j = min(row, count - 1);
    const bool is_selected = j >= sinks && j < selected_end;
    const uint32_t at = ring_first + (j - selected_end);
    const uint32_t in_ring = ring_base + (at >= ring_tokens ? at - ring_tokens : at);
    return {j < sinks ? j : is_selected ? pool_base : in_ring, LoadIf(is_selected, selected + (j - sinks))};
  }
  __device__ Page FindPage(const Local& local) const {
    const uint32_t index = local.base + local.read;
    return {LoadIf(true, pages + index / 64), index % 64};
  }

  const uint32_t* selected;
  const uint32_t* pages;
  uint32_t num_pages;
  uint32_t sinks, selected_end, count;
  uint32_t pool_base, ring_base, ring_tokens, ring_first;
};

}  // namespace winnow::device
