#pragma once
#include "common/base/kv_layout.h"
#include "kernels/device/params/cache.h"

namespace winnow::device {

inline constexpr int kAppendWarps = 4;

// Pages that rows_per_list consecutive rows may touch, wherever the first lies.
constexpr int AppendPages(int rows_per_list, int page_tokens) {
  return (rows_per_list + page_tokens - 2) / page_tokens + 1;
}

// The bounds of a block's page.
template <int kHeadDim>
__device__ __forceinline__ uint4* PageBounds(const AppendParams& p, uint32_t block, uint32_t page) {
  const int64_t stride = PageBlockStride(p.page_block_stride, p.page_tokens, kHeadDim);
  return reinterpret_cast<uint4*>(static_cast<uint8_t*>(p.bounds) + block * stride) + page * (kHeadDim / 4);
}

// A page that a list's rows touch, and which of them lie in it.
template <int kHeadDim>
struct AppendedPage {
  static constexpr int kLanes = kHeadDim / 8;

  // The number-th page of the list, of AppendPages.
  __device__ AppendedPage(const AppendParams& p, int list, int number)
      : first(p.positions[list]),
        page_begin((first / p.page_tokens + number) * p.page_tokens),
        begin(max(first, page_begin)),
        end(min(first + p.rows_per_list, page_begin + p.page_tokens)) {}
  __device__ bool empty() const { return begin >= end; }
  // Rows of the page are stored, and bounded, already.
  __device__ bool begun() const { return begin > page_begin; }
  __device__ uint32_t Block(const AppendParams& p, int list) const {
    return p.blocks[p.lists[list].first_block + page_begin / kBlockTokens];
  }
  // Of its keys, greatest and behind them least: [2][kLanes].
  __device__ uint4* Bounds(const AppendParams& p, uint32_t block) const {
    return PageBounds<kHeadDim>(p, block, page_begin % kBlockTokens / p.page_tokens);
  }

  const uint32_t first, page_begin, begin, end;
};

}  // namespace winnow::device
