#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "cache_rank/index/index_layout.h"
#include "cache_rank/index/page_indexer.h"
#include "cache_rank/store/damage.h"
#include "cache_rank/store/head_blocks.h"
#include "cache_rank/store/kv_block_pool.h"
#include "cache_rank/store/kv_retention.h"
#include "cache_rank/store/prefix_cache.h"
#include "common/base/kv_layout.h"
#include "common/base/status.h"
#include "kernels/kernel_table.h"

namespace winnow {

class SequenceKv;

// Rows of one (layer, kv head) at these positions, ascending, which are there, and where they are to go.
struct WantedRows {
  const SequenceKv* kv = nullptr;
  int layer = 0;
  int head = 0;
  std::span<const uint32_t> positions;
  std::byte* out = nullptr;
  // [parts()] filled with the CRC-32C of each kRowsOfPart rows at `out`, which are read for their own checksums anyway;
  // null: nobody wants them.
  uint32_t* checksums = nullptr;

  // Rows that one thread of several takes. They lie apart: each of them is a wait for memory, so that threads pay
  // sooner than for neighbours.
  static constexpr size_t kRowsOfPart = 32;
  size_t parts() const { return (positions.size() + kRowsOfPart - 1) / kRowsOfPart; }
};

// The rows of one sequence and the index of their keys: the blocks of each (layer, kv head) (HeadBlocks).
//
// Layers fill independently, each strictly in position order. A block is immutable once its kBlockTokens rows are in,
// and only such blocks are shared between sequences; the tail that is not full is private. Blocks for max_positions are
// reserved at creation, so an append within them never fails for want of memory. A streaming head keeps what
// KvRetention says and no pages: its blocks in between go back as the sequence grows, its few blocks are never shared.
// One thread writes; rows below rows(layer) that are kept may be read by any thread meanwhile.
//
// Every read compares rows with their checksums (RowChecksums) where it took them to. A row that differs is noted, once
// (damage): it was copied all the same, and nothing that was read of the sequence may leave the process any more. The
// index has no checksums: it is made of rows, and MendIndex compares it with what they give.
class SequenceKv {
 public:
  // RESOURCE_EXHAUSTED with the arithmetic when the blocks do not fit, INVALID_ARGUMENT when the index cannot be kept
  // of heads of this dimension. It begins with the positions of `prefix`, of sequences with the same index; where heads
  // stream there is none.
  static absl::StatusOr<SequenceKv> Create(KvBlockPool* pool, const KernelTable* kernels, const KvLayout& layout,
                                           uint32_t max_positions, const IndexLayout& index = {},
                                           KvRetention retention = {}, std::span<const PrefixUnit* const> prefix = {});

  // A new sequence that holds the rows below the watermark and their index: full blocks shared, the tails copied.
  absl::StatusOr<SequenceKv> Fork(uint32_t max_positions) const;

  // Appends `count` positions of one layer: rows [num_kv_heads][count]. FAILED_PRECONDITION when
  // `position` is not the layer's next one, OUT_OF_RANGE beyond max_positions. Many rows are shared out over the
  // threads of `team`, where one is given.
  absl::Status Append(int layer, uint32_t position, uint32_t count, const std::byte* rows, Executor* team = nullptr);
  // One position of all layers, [num_layers][num_kv_heads] rows, or none of them; where they are many or complete a
  // page, with the threads of `team`.
  absl::Status AppendOfLayers(uint32_t position, const std::byte* rows, Executor& team);

  // References to all blocks that positions [block * kBlockTokens, (block + 1) * kBlockTokens) fill; below the
  // watermark, and no list streams.
  PrefixUnit ShareUnit(size_t block) const;

  // Drops the rows at and above `position` in every layer; a shared block that becomes the tail is copied.
  // Nothing changes when that fails: RESOURCE_EXHAUSTED when blocks that others keep alive cannot be replaced,
  // FAILED_PRECONDITION when the block that `position` lies in was given back.
  absl::Status Truncate(uint32_t position);

  const KvLayout& layout() const { return layout_; }
  uint32_t rows(int layer) const { return rows_[layer]; }
  uint32_t watermark() const;  // positions below are there in every layer
  uint32_t max_positions() const { return max_positions_; }

  // Rows from here up to `position` are there in every list, beside the sinks.
  uint32_t FirstKeptBelow(uint32_t position) const;

  // [ceil(rows / kBlockTokens)] pointers to the index tiles, where rows have some, and to the rows, of one (layer, kv
  // head); null for blocks that were given back.
  const void* const* tiles(int layer, int head) const { return list(layer, head).rows.tiles(); }
  const void* const* row_blocks(int layer, int head) const { return list(layer, head).rows.rows(); }
  // Of the pool: which block holds rows [b * kBlockTokens, ...) of one (layer, kv head).
  uint32_t block_number(int layer, int head, size_t b) const { return list(layer, head).rows[b].number(); }
  // All that is kept of its keys; pages up to CompletePages(index_layout(), rows(layer)).
  HeadIndex index(int layer, int head) const;
  const IndexLayout& index_layout() const { return index_layout_; }
  // Keys of int8 are scored in their rows, but where these lie in a slower tier.
  bool keys_have_tiles() const {
    return layout_.dtype != Dtype::kI8 || (pool_->tiers() != nullptr && key_parts_.tile_bytes > 0);
  }
  // Copies rows [first, first + count) of one (layer, kv head) to out; zeros for rows that were given back. Data-plane
  // thread, as it may move rows between tiers.
  void CopyRows(int layer, int head, uint32_t first, uint32_t count, std::byte* out) const;
  // Of all kv heads of a layer, [num_kv_heads][count] rows, by the threads of `team`, where there is one and one tier.
  void CopyLayerRows(int layer, uint32_t first, uint32_t count, std::byte* out, Executor* team) const;
  // Copies rows of lists of sequences of one pool: those that selections want, one list after the other. By the threads
  // of `team`, where there is one and one tier. gathered(list, parts, worker) is called on the thread that has done so
  // many parts of a list; worker 0 is the caller.
  using OnGathered = absl::FunctionRef<void(size_t list, size_t parts, int worker)>;
  static void GatherRows(std::span<const WantedRows> wanted, Executor* team, OnGathered gathered);
  static void GatherRows(std::span<const WantedRows> wanted, Executor* team) {
    GatherRows(wanted, team, [](size_t, size_t, int) {});
  }
  // The CRC-32C of what has the checksum `before`, followed by the rows that were gathered to `rows`.
  static uint32_t JoinChecksums(uint32_t before, const WantedRows& rows);
  // row_blocks() of the layer hold all its rows: with two tiers the newest ones may be on their way. Data-plane thread.
  void SettleRows(int layer) const { Settle(layer, rows_[layer]); }
  // The same of its rows below `end`; false when some of them are not there, or were given back.
  bool SettleRowsBelow(int layer, uint32_t end) const;

  // For readers of row_blocks(): false, and noted, when a row of [first, end), or one at these positions, is damaged;
  // rows that were given back are not looked at. Any thread, once they are settled.
  bool CheckRows(int layer, int head, uint32_t first, uint32_t end) const;
  bool CheckRows(int layer, int head, std::span<const uint32_t> positions) const;
  // The first damaged row that a read, or NoteDamage, has found.
  std::optional<DamagedRow> damage() const { return damage_->Read(); }
  bool is_damaged() const { return damage_->is_set(); }
  void NoteDamage(const DamagedRow& row) const;
  // Which of its rows lie in that block of the pool: the first of one list; none: no block of its rows.
  std::optional<DamagedRow> FindBlock(uint32_t block_number) const;

  // Blocks of a list: those of rows, whose tiles are index, then the pages'.
  size_t index_blocks(size_t list) const;
  // Of the pool, of the b-th of them; none: it is one of pages, or was given back.
  std::optional<uint32_t> row_block_number(size_t list, size_t b) const;
  struct IndexCheck {
    size_t bytes = 0;  // that were looked at
    bool differed = false;
  };
  // Makes the b-th of them anew from the rows and puts right what differs. Data-plane thread, while nobody reads.
  IndexCheck MendIndex(size_t list, size_t b, std::vector<std::byte>& scratch);

  // Rows read from the large tier for this sequence, by CopyRows and GatherRows; 0 with one tier.
  uint64_t loaded_rows() const { return loaded_rows_; }
  size_t blocks() const;       // references held, shared ones included
  size_t index_bytes() const;  // of them, in the fast tier

 private:
  SequenceKv(KvBlockPool* pool, KvBlockReservation reservation, const KernelTable* kernels, const KvLayout& layout,
             uint32_t max_positions, const IndexLayout& index, KvRetention retention);
  void Gather(const WantedRows& wanted) const;
  absl::Status CheckContinues(int layer, uint32_t position, uint32_t count) const;
  absl::Status StoreRows(int layer, uint32_t position, uint32_t count, const std::byte* rows);
  // The keys of rows [first_row, first_row + count) of a block, into a tile.
  void IndexRows(const std::byte* rows, uint32_t count, uint32_t first_row, std::byte* tile) const;
  void AppendTogether(int layer, int end_layer, uint32_t position, uint32_t count, const std::byte* rows,
                      Executor& team);
  // A block of rows of int8 has no place for a tile of its own.
  bool HasTile(const KvBlock& block) const { return layout_.dtype != Dtype::kI8 || block.index_bytes() > 0; }
  HeadBlocks& list(int layer, int head) { return lists_[layout_.list(layer, head)]; }
  const HeadBlocks& list(int layer, int head) const { return lists_[layout_.list(layer, head)]; }
  void Adopt(std::span<const PrefixUnit* const> prefix);
  // Rows of the layer below `end` are in their blocks.
  void Settle(int layer, uint32_t end) const;
  void GiveBack(BlockList& rows, uint32_t end);
  // Pages [page, end) of lists that hold their rows.
  void IndexPages(HeadBlocks& head, uint32_t page, uint32_t end);
  // The same of all kv heads of layers [layer, end_layer), whose rows are all kept.
  void IndexTogether(int layer, int end_layer, uint32_t page, uint32_t end, Executor& team);
  void TakePageBlocks(HeadBlocks& head, uint32_t pages);
  void IndexPage(const HeadBlocks& head, uint32_t page) const;
  // Into tiles, of which `cuboids` may be null.
  void IndexPageInto(const HeadBlocks& head, uint32_t page, std::byte* bounds, std::byte* cuboids) const;
  // Compares rows that were copied to `out` with their checksums.
  void CheckCopied(int layer, int head, const KvBlock& block, uint32_t position, uint32_t count, std::byte* out) const;
  void CheckGathered(const WantedRows& wanted) const;
  // A copy in the fast tier may be damaged where the row in the large one is not.
  bool ReadAgain(const KvBlock& block, uint32_t row, std::byte* out) const;
  IndexCheck MendTile(size_t list, size_t b, std::vector<std::byte>& scratch);
  IndexCheck MendPages(size_t list, size_t b, bool cuboids, std::vector<std::byte>& scratch);

  KvBlockPool* pool_;
  const KernelTable* kernels_;
  KvLayout layout_;
  IndexLayout index_layout_;
  uint32_t max_positions_;
  KvRetention retention_;
  KvBlockReservation reservation_;
  std::unique_ptr<PageIndexer> indexer_;  // null without pages
  std::vector<HeadBlocks> lists_;         // [num_layers][num_kv_heads]
  std::vector<uint32_t> rows_;            // [num_layers]
  IndexParts key_parts_, page_parts_;     // of blocks of rows that are scored by their keys, and of pages
  struct Unsettled {
    uint32_t first = 0;    // rows from here on were staged ...
    uint64_t flushes = 0;  // ... when there had been so many flushes
  };
  std::vector<Unsettled> unsettled_;  // [num_layers]
  mutable uint64_t loaded_rows_ = 0;  // a statistic of reading
  std::unique_ptr<DamageNote> damage_;
};

}  // namespace winnow
