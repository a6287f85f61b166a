#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cache_rank/kv_block_pool.h"

namespace winnow {

// The blocks of one list of units, kBlockTokens units to a block: rows of a (layer, kv head), or the bounds of its
// pages. Blocks that are full may be shared with other lists; the tail that is not full is private.
class BlockList {
 public:
  static constexpr size_t BlocksFor(uint32_t units) {
    return (static_cast<size_t>(units) + kBlockTokens - 1) / kBlockTokens;
  }
  void Reserve(size_t blocks);
  void Push(KvBlock block);

  // Adds the first `units` of `source`: full blocks shared, the tail copied into a block of the reservation.
  void CopyFrom(const BlockList& source, uint32_t units, KvBlockReservation& reservation);

  // Blocks that Truncate(units) has to replace: those that others hold.
  size_t SharedFrom(uint32_t units) const;
  // Keeps the first `units`. What nobody else holds goes back to the reservation; a shared block that becomes the tail
  // is copied. The reservation has been extended by SharedFrom(units).
  void Truncate(uint32_t units, KvBlockReservation& reservation);

  size_t size() const { return blocks_.size(); }
  const KvBlock& back() const { return blocks_.back(); }
  const KvBlock& operator[](size_t i) const { return blocks_[i]; }
  // [size()] pointers to the row areas and to the tiles of the blocks, as kernels want them.
  const void* const* rows() const { return rows_.data(); }
  const void* const* tiles() const { return tiles_.data(); }

 private:
  void Pop();
  std::vector<KvBlock> blocks_;
  std::vector<const void*> rows_, tiles_;
};

}  // namespace winnow
