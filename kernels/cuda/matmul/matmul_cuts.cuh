#pragma once
#include <algorithm>
#include <cstdint>

// How a product is cut into ranges of work. The work is a list of units, tile after tile of output features, each tile
// num_chunks chunks of k, and every block gets an equal range of the list. The shape of W alone decides, so that sums
// are the same however many rows there are, and on every GPU.
//
// Finer ranges at the end, taken by whichever block is free, were slower: every range that ends inside of a tile leaves
// a part of its sums, and those exchanges cost more than the 10 % by which multiprocessors differ in speed.
namespace winnow::device {

inline constexpr int kMatmulBlocks = 132;  // at most; one on each multiprocessor of an H100 or H200

struct MatmulCuts {
  int num_chunks;
  int num_units;  // times num_blocks below 2^32: matrices of up to 10^11 elements
  int num_blocks;
};

struct WorkRange {
  int begin, end;
};

inline MatmulCuts CutsOf(int num_tiles, int num_chunks) {
  const int num_units = num_tiles * num_chunks;
  return {num_chunks, num_units, std::min(kMatmulBlocks, num_units)};
}

__device__ inline WorkRange UnitsOf(const MatmulCuts& cuts, int block) {
  const uint32_t at = block, units = cuts.num_units, blocks = cuts.num_blocks;
  return {static_cast<int>(at * units / blocks), static_cast<int>((at + 1) * units / blocks)};
}

__device__ inline int BlockOf(const MatmulCuts& cuts, int unit) {
  const uint32_t after = unit + 1, units = cuts.num_units, blocks = cuts.num_blocks;
  return static_cast<int>((after * blocks - 1) / units);
}

}  // namespace winnow::device
