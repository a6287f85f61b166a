#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cache_rank/kv_block_pool.h"
#include "common/base/kv_layout.h"
#include "common/base/status.h"
#include "common/selection/attended_set.h"
#include "kernels/kernel_table.h"

namespace winnow {

// What is kept of the rows of streaming heads (common/selection/attended_set.h): the sinks, and the newest rows, enough
// to refill an inference rank's ring at any position that a re-attach may go back to.
struct KvRetention {
  // Positions that a re-attach may drop without finding rows of streaming heads gone: in lockstep 2, and those back to
  // an anchor. Further back the prompt is prefilled again.
  static constexpr uint32_t kRestartSlack = 2 * kBlockTokens;

  static KvRetention Of(const SelectionSpec& spec, const KvLayout& layout);
  // Blocks below hold the sinks; those that end at or below FirstNewest(rows) are given back.
  uint32_t FirstNewest(uint32_t rows) const { return rows > newest_tokens ? rows - newest_tokens : 0; }
  // Most blocks of list `list` at a time for a sequence of at most max_positions.
  size_t MostBlocks(size_t list, uint32_t max_positions) const;

  std::vector<bool> streams = {};  // [list]; empty: no list does
  uint32_t sink_tokens = 0;
  uint32_t newest_tokens = 0;
  bool Streams(size_t list) const { return !streams.empty() && streams[list]; }
};

// The rows of one sequence: per (layer, kv head) a list of blocks.
//
// Layers fill independently, each strictly in position order. A block is immutable once its kBlockTokens rows are in,
// and only such blocks are shared between sequences; the tail that is not full is private. Blocks for max_positions are
// reserved at creation, so an append within them never fails for want of memory. A streaming head keeps what
// KvRetention says: its blocks in between go back as the sequence grows, its few blocks are never shared. One thread
// writes; rows below rows(layer) that are kept may be read by any thread meanwhile.
class SequenceKv {
 public:
  // RESOURCE_EXHAUSTED with the arithmetic when the blocks do not fit.
  static absl::StatusOr<SequenceKv> Create(KvBlockPool* pool, const KernelTable* kernels, const KvLayout& layout,
                                           uint32_t max_positions, KvRetention retention = {});

  // A new sequence that holds the rows below the watermark: full blocks shared, the tail copied.
  absl::StatusOr<SequenceKv> Fork(uint32_t max_positions) const;

  // Appends `count` positions of one layer: rows [num_kv_heads][count][2 * head_dim]. FAILED_PRECONDITION when
  // `position` is not the layer's next one, OUT_OF_RANGE beyond max_positions.
  absl::Status Append(int layer, uint32_t position, uint32_t count, const std::byte* rows);

  // Drops the rows at and above `position` in every layer; a shared block that becomes the tail is copied.
  // RESOURCE_EXHAUSTED, and nothing changes, when blocks that others keep alive cannot be replaced.
  absl::Status Truncate(uint32_t position);

  uint32_t rows(int layer) const { return rows_[layer]; }
  uint32_t watermark() const;  // positions below are there in every layer
  uint32_t max_positions() const { return max_positions_; }

  // Rows from here up to `position` are there in every list, beside the sinks.
  uint32_t FirstKeptBelow(uint32_t position) const;

  // [ceil(rows / kBlockTokens)] pointers to the index tiles, and to the rows, of one (layer, kv head); null for blocks
  // that were given back.
  const void* const* tiles(int layer, int head) const { return list(layer, head).tiles.data(); }
  const void* const* row_blocks(int layer, int head) const { return list(layer, head).rows.data(); }
  // Copies rows [first, first + count) of one (layer, kv head) to out; zeros for rows that were given back.
  void CopyRows(int layer, int head, uint32_t first, uint32_t count, std::byte* out) const;

  size_t blocks() const;  // references held, shared ones included

 private:
  struct BlockList {
    std::vector<KvBlock> blocks;
    std::vector<const void*> rows, tiles;  // of the same blocks, as kernels want them
    size_t given_back_end = 0;             // blocks below were looked at by GiveBack
    void Push(KvBlock block);
    void Pop();
  };
  SequenceKv(KvBlockReservation reservation, const KernelTable* kernels, const KvLayout& layout, uint32_t max_positions,
             KvRetention retention);
  void GiveBack(BlockList& blocks, uint32_t rows);
  BlockList& list(int layer, int head) { return lists_[layer * layout_.num_kv_heads + head]; }
  const BlockList& list(int layer, int head) const { return lists_[layer * layout_.num_kv_heads + head]; }

  KvBlockPool* pool_ = nullptr;
  const KernelTable* kernels_;
  KvLayout layout_;
  uint32_t max_positions_;
  KvRetention retention_;
  KvBlockReservation reservation_;
  std::vector<BlockList> lists_;  // [num_layers][num_kv_heads]
  std::vector<uint32_t> rows_;    // [num_layers]
};

}  // namespace winnow
