#pragma once
#include <algorithm>
#include <cstdint>

// How a product is cut into ranges of work. The work is a list of units, tile after tile of output features, each tile
// num_chunks chunks of k. The list is cut by the shape of W alone, so that sums are the same however many rows there
// are and whichever multiprocessor takes a range.
namespace winnow::cuda {

// Ranges 0..kMatmulBlocks-1 belong to the blocks of those numbers: what they fetch is known before earlier kernels end.
// The last eighth of the units is cut finer, and taken by whoever is free: multiprocessors differ by 10 % in what the
// memory gives them.
inline constexpr int kMatmulBlocks = 132;  // one on each multiprocessor of an H100 or H200
inline constexpr int kMaxRanges = kMatmulBlocks * 5;
#ifndef LAB_MIN
#define LAB_MIN 8
#endif
inline constexpr int kLeastUnits = LAB_MIN;

struct RangeLevel {
  int first_range, first_unit, num_ranges, num_units;
};

// The product of the last two stays below 2^32 for matrices of up to 10^11 elements.
struct MatmulCuts {
  int num_chunks;
  int num_units;
  int num_ranges;
  RangeLevel levels[3];  // num_ranges 0: none
};

struct UnitRange {
  int begin, end;
};

inline MatmulCuts CutsOf(int num_tiles, int num_chunks) {
  MatmulCuts cuts = {.num_chunks = num_chunks, .num_units = num_tiles * num_chunks, .num_ranges = 0, .levels = {}};
  const int units = cuts.num_units;
  // Small ranges cost more than they bring: each leaves a part of a tile to be summed.
  const bool is_large = units / kMatmulBlocks >= 12 * kLeastUnits;
  const int coarse_units = is_large ? units / 12 : 0, fine_units = is_large ? units / 24 : 0;
  const int coarse = std::min(4 * kMatmulBlocks / 3, coarse_units / kLeastUnits);
  const int fine = std::min(8 * kMatmulBlocks / 3, fine_units / kLeastUnits);
  const int of_level[3][2] = {
      {units - coarse_units - fine_units, std::min(kMatmulBlocks, units)}, {coarse_units, coarse}, {fine_units, fine}};
  int unit = 0;
  for (int i = 0; i < 3; ++i) {
    cuts.levels[i] = {cuts.num_ranges, unit, of_level[i][1], of_level[i][0]};
    unit += of_level[i][0];
    cuts.num_ranges += of_level[i][1];
  }
  return cuts;
}

__device__ inline UnitRange UnitsOf(const MatmulCuts& cuts, int range) {
  const int i = range >= cuts.levels[2].first_range && cuts.levels[2].num_ranges > 0   ? 2
                : range >= cuts.levels[1].first_range && cuts.levels[1].num_ranges > 0 ? 1
                                                                                       : 0;
  const RangeLevel& level = cuts.levels[i];
  const uint32_t at = range - level.first_range, units = level.num_units, ranges = level.num_ranges;
  return {level.first_unit + static_cast<int>(at * units / ranges),
          level.first_unit + static_cast<int>((at + 1) * units / ranges)};
}

__device__ inline int RangeOf(const MatmulCuts& cuts, int unit) {
  const int i = cuts.levels[2].num_ranges > 0 && unit >= cuts.levels[2].first_unit   ? 2
                : cuts.levels[1].num_ranges > 0 && unit >= cuts.levels[1].first_unit ? 1
                                                                                     : 0;
  const RangeLevel& level = cuts.levels[i];
  const uint32_t after = unit - level.first_unit + 1, units = level.num_units, ranges = level.num_ranges;
  return level.first_range + static_cast<int>((after * ranges - 1) / units);
}

// A range ends or begins inside of at most two tiles; each gets a place for its part of the sums.
__device__ inline int SlotOf(const MatmulCuts& cuts, int range, int tile) {
  return 2 * range + (UnitsOf(cuts, range).begin / cuts.num_chunks == tile ? 0 : 1);
}

}  // namespace winnow::cuda
