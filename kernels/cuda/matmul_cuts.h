#pragma once
#include <algorithm>
#include <cstdint>

// How a product is shared out. Each block makes whole output features: parts of sums never travel between blocks, as
// the round trips that takes at the end of a kernel, while the next one's fetches fill the memory's queues, cost more
// than the idle multiprocessors that whole features leave. The shape of W alone decides, never the number of rows, so
// that sums are the same in every batch, and the same on every GPU.
namespace winnow::cuda {

inline constexpr int kMatmulBlocks = 132;  // at most; one on each multiprocessor of an H100 or H200
inline constexpr int kMaxTileOut = 96;
inline constexpr int kMultiplyWarps = 8;

struct MatmulCuts {
  int tile_out;         // output features of a tile, a multiple of 8
  int tiles_per_block;  // one after the other
  int num_blocks;
  int num_strips;  // of 16 output features in a tile; the last may be half
  int num_slices;  // warps that share the k of a strip, in steps of 32; a power of two
};

inline MatmulCuts CutsOf(int out_features) {
  const auto ceil_div = [](int a, int b) { return (a + b - 1) / b; };
  const int eights_per_block = ceil_div(out_features, 8 * kMatmulBlocks);
  MatmulCuts cuts;
  cuts.tiles_per_block = ceil_div(eights_per_block * 8, kMaxTileOut);
  cuts.tile_out = 8 * ceil_div(eights_per_block, cuts.tiles_per_block);
  cuts.num_blocks = ceil_div(out_features, cuts.tile_out * cuts.tiles_per_block);
  cuts.num_strips = ceil_div(cuts.tile_out, 16);
  cuts.num_slices = cuts.num_strips == 1 ? 4 : cuts.num_strips <= 4 ? 2 : 1;
  return cuts;
}

}  // namespace winnow::cuda
