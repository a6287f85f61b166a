#pragma once
#include <cstdint>

#include "kernels/cuda/attention.h"

namespace winnow::cuda {

// How a list is cut, which its own count and the shape of rows alone decide, so that a row's bits depend on nothing
// else: chunks of so many rows as are worked on at once, splits of equally many chunks, at most 32 of them. Partial
// results are folded from left to right in four levels, chunks into a split, 2 splits into a pair, 4 pairs into an
// octet, octets into the list. A thread block takes one unit, which is a node of one of these levels; which level is a
// matter of speed only, as every level gives the same folds.
inline constexpr uint32_t kMaxSplits = 32;
enum UnitLevel : int { kSplit = 0, kPair = 1, kOctet = 2, kWholeList = 3 };

__host__ __device__ constexpr uint32_t SplitsOfUnit(int level) {
  return level == kSplit ? 1 : level == kPair ? 2 : level == kOctet ? 8 : kMaxSplits;
}
__host__ __device__ constexpr uint32_t CeilDiv(uint32_t a, uint32_t b) {
  return (a + b - 1) / b;
}
// Narrow rows come in larger chunks, over which the fixed work of a chunk is spread.
__host__ __device__ constexpr uint32_t ChunkRows(Dtype dtype) {
  return dtype == Dtype::kBf16 ? 64 : 128;
}

struct ListCut {
  __host__ __device__ ListCut(uint32_t count, uint32_t chunk_rows)
      : chunks(CeilDiv(count, chunk_rows)),
        split_chunks(chunks <= kMaxSplits ? 1 : CeilDiv(chunks, kMaxSplits)),
        splits(CeilDiv(chunks, split_chunks)) {}
  __host__ __device__ uint32_t units(int level) const { return CeilDiv(splits, SplitsOfUnit(level)); }

  uint32_t chunks;
  uint32_t split_chunks;
  uint32_t splits;
};

// Where the rows of one list lie, in the two steps of looking it up.
struct ListRows {
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
        ring_first(list.recent_begin % list.ring_tokens) {}

  // Has the page table brought into L1 while `selected` is on its way: one of two dependent reads less. By all threads.
  __device__ void TouchPages() const {
    constexpr uint32_t kSectorPages = 8;
    const uint32_t at = threadIdx.x * kSectorPages;
    if (at < num_pages && selected_end > sinks) {
      asm volatile("{.reg .b32 unused; ld.global.nc.b32 unused, [%0];}" ::"l"(pages + at));
    }
  }
  // Rows at and behind `count` give that of the last row: safe to read, and left out later.
  __device__ uint32_t LocalIndex(uint32_t row) const {
    const uint32_t j = min(row, count - 1);
    if (j < sinks) return j;
    if (j < selected_end) return pool_base + __ldg(selected + (j - sinks));
    const uint32_t at = ring_first + (j - selected_end);
    return ring_base + (at >= ring_tokens ? at - ring_tokens : at);
  }
  __device__ uint32_t Slot(uint32_t local) const { return __ldg(pages + local / 64) * 64 + local % 64; }

  const uint32_t* selected;
  const uint32_t* pages;
  uint32_t num_pages;
  uint32_t sinks, selected_end, count;
  uint32_t pool_base, ring_base, ring_tokens, ring_first;
};

}  // namespace winnow::cuda
