#pragma once
#include <cstddef>
#include <cstdint>

#include "cache_rank/index/index_layout.h"
#include "cache_rank/store/block_list.h"
#include "cache_rank/store/kv_block_pool.h"
#include "cache_rank/store/prefix_cache.h"

namespace winnow {

// The blocks of one (layer, kv head): its rows, whose tiles hold the keys, and, where the index has pages, the blocks
// whose row areas hold the pages' tiles (kBlockTokens pages each).
struct HeadBlocks {
  BlockList rows;
  BlockList bounds;   // empty without pages
  BlockList cuboids;  // empty where the index has none

  // Room for the pointers to the blocks of so many positions.
  void Reserve(const IndexLayout& index, uint32_t max_positions);

  // Adds references to a unit's blocks of this list, `list` being its number in the unit.
  void Adopt(const PrefixUnit& unit, size_t list);
  // Adds references to all blocks that positions [block * kBlockTokens, (block + 1) * kBlockTokens) fill to the unit.
  void ShareUnit(const IndexLayout& index, size_t block, PrefixUnit* unit) const;
  // Becomes the first `positions` of another: full blocks shared, the tails copied.
  void CopyFrom(const HeadBlocks& source, const IndexLayout& index, uint32_t positions,
                KvBlockReservation& reservation);

  size_t held() const { return rows.held() + bounds.held() + cuboids.held(); }  // references, shared ones included
  size_t index_bytes() const;                                                   // of them, in the fast tier
};

}  // namespace winnow
