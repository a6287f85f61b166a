#pragma once
#include <cstdint>

#include "kernels/cuda/select/unit_stream.cuh"

// What a selection has brought into the L2 while it waits for its queries. Results do not depend on it.

namespace winnow::device {

// Both multiples of 16.
__device__ __forceinline__ void PrefetchToL2(const void* from, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(from)), "r"(bytes)
               : "memory");
#endif
}

// The first two tiles of a warp's way through units that lie in their blocks without gaps (UnitStream).
__device__ __forceinline__ void PrefetchTiles(const UnitTable& table, uint32_t first_tile, uint32_t tile_step,
                                              uint32_t end) {
  const uint32_t tile_blocks = kTileUnits >> table.block_shift, lane = threadIdx.x % 32, tile = lane / tile_blocks;
  const uint32_t column = (first_tile + tile * tile_step) * kTileUnits + (lane % tile_blocks << table.block_shift);
  if (tile < 2 && column < end) {
    const int64_t block = table.Block(table.Unit(column));
    const int64_t bytes = table.unit_stride << table.block_shift;
    PrefetchToL2(table.data + block * table.block_stride, static_cast<uint32_t>(bytes));
  }
}

}  // namespace winnow::device
