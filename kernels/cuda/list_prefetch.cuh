#pragma once
#include <cstdint>

#include "common/base/kv_layout.h"
#include "kernels/cuda/importance.cuh"
#include "kernels/cuda/selection.h"
#include "kernels/cuda/unit_stream.cuh"

// What a two-stage selection has brought into the L2 while it waits for something else: bounds of its first pages while
// queries come, and the keys of pages that will most likely be candidates while the candidates are found. Results do
// not depend on it.

namespace winnow::cuda {

// Both multiples of 16.
__device__ __forceinline__ void PrefetchToL2(const void* from, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(from)), "r"(bytes)
               : "memory");
#endif
}
__device__ __forceinline__ void PrefetchLineToL2(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(from)) : "memory");
}

// The first two tiles of a warp's way through pages whose blocks are stored without gaps (UnitStream).
__device__ __forceinline__ void PrefetchTiles(const UnitTable& table, uint32_t first_tile, uint32_t tile_step,
                                              uint32_t end) {
  const uint32_t tile_blocks = kTileUnits >> table.block_shift, lane = threadIdx.x % 32, tile = lane / tile_blocks;
  const uint32_t block = ((first_tile + tile * tile_step) * kTileUnits >> table.block_shift) + lane % tile_blocks;
  if (tile < 2 && block << table.block_shift < end) {
    PrefetchToL2(table.data + table.blocks[block] * table.block_stride, static_cast<uint32_t>(table.block_stride));
  }
}

// Keys of the best ones of the pages that a warp has scored, `share` of as many of them as will be candidates if they
// are like the list's others. Keys of a block lie without gaps. Whole warps, behind their writing of page_keys.
template <UnitFormat kFormat, int kDim>
__device__ __forceinline__ void PrefetchLikelyPages(const SelectParams& params, const SelectionList& list,
                                                    const uint32_t* page_keys, uint32_t first_tile, uint32_t tile_step,
                                                    uint32_t scored_pages, float share) {
  constexpr int kTiles = 4, kSteps = 6;  // at once, of bisection
  if (share == 0) return;
  const uint32_t lane = threadIdx.x % 32, page_rows = params.pages.page_tokens;
  const float wanted_of_page =
      share * static_cast<float>(params.candidate_pages * page_rows) / static_cast<float>(list.last - list.first);
  __syncwarp();
#pragma unroll 1
  for (uint32_t tile = first_tile; tile * kTileUnits < scored_pages; tile += kTiles * tile_step) {
    uint32_t page[2], key[2], pages = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      page[i] = (tile + (2 * i + lane / 16) * tile_step) * kTileUnits + lane % 16;
      const bool is_scored = page[i] < scored_pages;
      key[i] = is_scored ? page_keys[page[i]] : 0;
      pages += __popc(__ballot_sync(~0u, is_scored));
    }
    const auto wanted = static_cast<uint32_t>(wanted_of_page * static_cast<float>(pages));
    if (wanted == 0) continue;
    const auto least_of = [](uint32_t k) { return k == 0 ? ~0u : k; };
    float low = FromOrderedKey(__reduce_min_sync(~0u, min(least_of(key[0]), least_of(key[1]))));
    float high = FromOrderedKey(__reduce_max_sync(~0u, max(key[0], key[1])));
    const float bound[2] = {key[0] == 0 ? -INFINITY : FromOrderedKey(key[0]),
                            key[1] == 0 ? -INFINITY : FromOrderedKey(key[1])};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const float middle = low + (high - low) / 2;
      const uint32_t above =
          __popc(__ballot_sync(~0u, bound[0] >= middle)) + __popc(__ballot_sync(~0u, bound[1] >= middle));
      if (above > wanted) {
        low = middle;
      } else {
        high = middle;
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (!(bound[i] >= high)) continue;
      const uint32_t row = page[i] * page_rows;
      const int64_t block = params.blocks[list.first_block + row / kBlockTokens];
      const uint32_t in_block = row % kBlockTokens;
      PrefetchToL2(static_cast<const uint8_t*>(params.keys.keys) + block * params.keys.block_stride +
                       in_block * params.keys.key_stride,
                   page_rows * Operand<kFormat, kDim>::kRowBytes);
      if constexpr (kFormat == UnitFormat::kF8) PrefetchLineToL2(params.keys.scales + block * kBlockTokens + in_block);
    }
  }
}

// The first keys of the part that begins at column `begin` of a list whose every key is scored, in up to `count` blocks
// without gaps. All threads of a block.
template <UnitFormat kFormat, int kDim>
__device__ __forceinline__ void PrefetchNextList(const SelectParams& params, uint32_t index, uint32_t begin,
                                                 uint32_t count) {
  if (index >= params.num_lists || threadIdx.x >= count) return;
  const SelectionList list = params.lists[index];
  const uint32_t row = begin + threadIdx.x * kBlockTokens;
  if (row >= list.num_keys || list.last <= list.first || list.last - list.first <= list.budget) return;
  const int64_t block = params.blocks[list.first_block + row / kBlockTokens];
  PrefetchToL2(static_cast<const uint8_t*>(params.keys.keys) + block * params.keys.block_stride,
               kBlockTokens * Operand<kFormat, kDim>::kRowBytes);
  if constexpr (kFormat == UnitFormat::kF8) PrefetchLineToL2(params.keys.scales + block * kBlockTokens);
}

}  // namespace winnow::cuda
