#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cache_rank/store/kv_block_pool.h"

namespace winnow {

// The blocks of one list of units, kBlockTokens units to a block: rows of a (layer, kv head), or the bounds of its
// pages. Blocks that are full may be shared with other lists; the tail that is not full is private. Blocks that were
// given back before the list ends leave a gap: no block, and null among the pointers.
class BlockList {
 public:
  static constexpr size_t BlocksFor(uint32_t units) {
    return (static_cast<size_t>(units) + kBlockTokens - 1) / kBlockTokens;
  }
  void Reserve(size_t blocks);
  void Push(KvBlock block);

  // Adds the first `units` of `source`: full blocks shared, the tail copied into a block of the reservation.
  void CopyFrom(const BlockList& source, uint32_t units, KvBlockReservation& reservation);
  // The same with every block copied and its gap kept, so that neither list keeps the other's blocks from going back.
  void CopyWholeFrom(const BlockList& source, uint32_t units, KvBlockReservation& reservation);

  // Returns the blocks [first, end) to the reservation; nobody shares them.
  void GiveBack(size_t first, size_t end, KvBlockReservation& reservation);
  // No block below but those before a gap was given back.
  size_t gap_end() const { return gap_end_; }

  // Blocks that Truncate(units) has to replace: those that others hold.
  size_t SharedFrom(uint32_t units) const;
  // Keeps the first `units`. What nobody else holds goes back to the reservation; a shared block that becomes the tail
  // is copied. The reservation has been extended by SharedFrom(units).
  void Truncate(uint32_t units, KvBlockReservation& reservation);

  size_t size() const { return blocks_.size(); }
  size_t held() const;  // blocks that are there
  const KvBlock& back() const { return blocks_.back(); }
  const KvBlock& operator[](size_t i) const { return blocks_[i]; }
  // [size()] pointers to the row areas and to the tiles of the blocks, as kernels want them.
  const void* const* rows() const { return rows_.data(); }
  const void* const* tiles() const { return tiles_.data(); }

 private:
  void Pop();
  std::vector<KvBlock> blocks_;
  std::vector<const void*> rows_, tiles_;
  size_t gap_end_ = 0;
};

}  // namespace winnow
