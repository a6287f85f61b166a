#include "cache_rank/store/sequence_kv.h"

#include <algorithm>
#include <cstring>

#include "cache_rank/store/kv_demand.h"
#include "common/base/check.h"
#include "kernels/parallel_for.h"

namespace winnow {
namespace {

constexpr uint32_t kManyRows = 2 * kBlockTokens;
constexpr size_t kManyLists = 64;  // a row of each takes longer than other threads take to come
// A row of one layer is shared out where heads are many and so are threads, as those are awake between layers.
constexpr int kManyHeads = 4, kManyThreads = 8;

}  // namespace

absl::StatusOr<SequenceKv> SequenceKv::Create(KvBlockPool* pool, const KernelTable* kernels, const KvLayout& layout,
                                              uint32_t max_positions, const IndexLayout& index, KvRetention retention,
                                              std::span<const PrefixUnit* const> prefix) {
  WINNOW_RETURN_IF_ERROR(CheckCanBeKept(*pool, layout, index, retention, max_positions));
  const uint32_t shared = static_cast<uint32_t>(prefix.size()) * kBlockTokens;
  WINNOW_CHECK(shared <= max_positions && (prefix.empty() || retention.streams.empty()));
  const KvDemand needed = DemandOf(layout, index, retention, max_positions, shared);
  auto reservation = pool->Reserve(needed.blocks, needed.index_bytes);
  if (!reservation.ok()) {
    return Annotate(reservation.status(), absl::StrCat(max_positions, " positions in ", layout.num_layers,
                                                       " layers of ", layout.num_kv_heads, " kv heads"));
  }
  SequenceKv kv(pool, *std::move(reservation), kernels, layout, max_positions, index, std::move(retention));
  kv.Adopt(prefix);
  return kv;
}

void SequenceKv::Adopt(std::span<const PrefixUnit* const> prefix) {
  if (pool_->tiers() != nullptr) pool_->tiers()->Flush();  // the rows of those that brought it
  const uint32_t rows = static_cast<uint32_t>(prefix.size()) * kBlockTokens;
  const uint32_t pages = CompletePages(index_layout_, rows);
  for (size_t i = 0; i < lists_.size(); ++i) {
    HeadBlocks& head = lists_[i];
    for (const PrefixUnit* unit : prefix) head.Adopt(*unit, i);
    // Pages in a block that is not full are indexed again: a block that others append to is not shared.
    IndexPages(head, pages - pages % kBlockTokens, pages);
  }
  std::fill(rows_.begin(), rows_.end(), rows);
}

PrefixUnit SequenceKv::ShareUnit(size_t block) const {
  PrefixUnit unit;
  for (const HeadBlocks& head : lists_) head.ShareUnit(index_layout_, block, &unit);
  return unit;
}

SequenceKv::SequenceKv(KvBlockPool* pool, KvBlockReservation reservation, const KernelTable* kernels,
                       const KvLayout& layout, uint32_t max_positions, const IndexLayout& index, KvRetention retention)
    : pool_(pool),
      kernels_(kernels),
      layout_(layout),
      index_layout_(index),
      max_positions_(max_positions),
      retention_(std::move(retention)),
      reservation_(std::move(reservation)),
      lists_(layout.num_lists()),
      rows_(layout.num_layers),
      key_parts_(KeyParts(layout, index)),
      page_parts_(PageParts(layout, index)),
      unsettled_(layout.num_layers),
      damage_(std::make_unique<DamageNote>()) {
  if (index.page_tokens > 0) indexer_ = std::make_unique<PageIndexer>(kernels, layout, index);
  for (HeadBlocks& head : lists_) head.Reserve(index, max_positions);
}

absl::StatusOr<SequenceKv> SequenceKv::Fork(uint32_t max_positions) const {
  const uint32_t rows = watermark();
  if (max_positions < rows) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_positions is ", max_positions, ", but ", rows, " positions are stored"));
  }
  const KvDemand needed = DemandOf(layout_, index_layout_, retention_, max_positions, rows);
  WINNOW_ASSIGN_OR_RETURN(KvBlockReservation reservation, pool_->Reserve(needed.blocks, needed.index_bytes));
  if (pool_->tiers() != nullptr) pool_->tiers()->Flush();  // the fork knows nothing of rows on their way
  SequenceKv fork(pool_, std::move(reservation), kernels_, layout_, max_positions, index_layout_, retention_);
  std::fill(fork.rows_.begin(), fork.rows_.end(), rows);
  for (size_t i = 0; i < lists_.size(); ++i) {
    if (retention_.Streams(i)) {
      fork.lists_[i].rows.CopyWholeFrom(lists_[i].rows, rows, fork.reservation_);
    } else {
      fork.lists_[i].CopyFrom(lists_[i], index_layout_, rows, fork.reservation_);
    }
  }
  return fork;
}

absl::Status SequenceKv::AppendOfLayers(uint32_t position, const std::byte* rows, Executor& team) {
  for (int layer = 0; layer < layout_.num_layers; ++layer) {
    WINNOW_RETURN_IF_ERROR(CheckContinues(layer, position, 1));
  }
  const bool ends_page = CompletePages(index_layout_, position) < CompletePages(index_layout_, position + 1);
  const bool is_much = ends_page || lists_.size() >= kManyLists;
  if (is_much && pool_->tiers() == nullptr && retention_.streams.empty()) {
    AppendTogether(0, layout_.num_layers, position, 1, rows, team);
    return absl::OkStatus();
  }
  const size_t layer_bytes = layout_.num_kv_heads * layout_.row_bytes();
  for (int layer = 0; layer < layout_.num_layers; ++layer) {
    WINNOW_RETURN_IF_ERROR(StoreRows(layer, position, 1, rows + layer * layer_bytes));
  }
  return absl::OkStatus();
}

absl::Status SequenceKv::Append(int layer, uint32_t position, uint32_t count, const std::byte* rows, Executor* team) {
  const bool shares_out =
      team != nullptr &&
      (count >= kManyRows || (layout_.num_kv_heads >= kManyHeads && kernels_->num_workers(*team) >= kManyThreads));
  if (shares_out && pool_->tiers() == nullptr && retention_.streams.empty()) {
    WINNOW_RETURN_IF_ERROR(CheckContinues(layer, position, count));
    AppendTogether(layer, layer + 1, position, count, rows, *team);
    return absl::OkStatus();
  }
  return StoreRows(layer, position, count, rows);
}

absl::Status SequenceKv::CheckContinues(int layer, uint32_t position, uint32_t count) const {
  if (position != rows_[layer]) {
    return absl::FailedPreconditionError(
        absl::StrCat("layer ", layer, " continues at position ", rows_[layer], ", rows came for ", position));
  }
  if (count > max_positions_ - position) {
    return absl::OutOfRangeError(absl::StrCat("rows up to position ", uint64_t{position} + count, " exceed the ",
                                              max_positions_, " positions that were admitted"));
  }
  return absl::OkStatus();
}

absl::Status SequenceKv::StoreRows(int layer, uint32_t position, uint32_t count, const std::byte* rows) {
  WINNOW_RETURN_IF_ERROR(CheckContinues(layer, position, count));
  const size_t row_bytes = layout_.row_bytes();
  RowTiers* const tiers = pool_->tiers();
  const std::byte* arrived = rows;
  const std::byte* const staged =
      tiers == nullptr ? nullptr : tiers->Stage(rows, layout_.num_kv_heads * count * row_bytes);
  if (tiers != nullptr) {
    rows = staged;
    if (unsettled_[layer].flushes != tiers->flushes()) unsettled_[layer] = {position, tiers->flushes()};
  }
  for (int head = 0; head < layout_.num_kv_heads; ++head) {
    HeadBlocks& lists = list(layer, head);
    const bool streams = retention_.Streams(layout_.list(layer, head));
    for (uint32_t done = 0; done < count;) {
      const uint32_t first_row = (position + done) % kBlockTokens;
      const uint32_t n = std::min<uint32_t>(count - done, kBlockTokens - first_row);
      if (first_row == 0) lists.rows.Push(reservation_.Allocate(streams ? IndexParts() : key_parts_));
      const KvBlock& tail = lists.rows.back();
      pool_->checksums().Set(tail.number(), first_row, n, arrived);
      std::byte* const place = tail.rows() + first_row * row_bytes;
      if (tiers == nullptr) {
        std::memcpy(place, rows, n * row_bytes);
      } else {
        tiers->Scatter(rows, place, n * row_bytes);
      }
      if (HasTile(tail)) IndexRows(rows, n, first_row, tail.tile());
      rows += n * row_bytes;
      arrived += n * row_bytes;
      done += n;
      if (streams) GiveBack(lists.rows, position + done);
    }
    if (streams) continue;
    const uint32_t page = CompletePages(index_layout_, position);
    const uint32_t pages = CompletePages(index_layout_, position + count);
    if (page < pages && tiers != nullptr) tiers->Flush();
    IndexPages(lists, page, pages);
  }
  rows_[layer] += count;
  if (tiers != nullptr) tiers->EndWrite(staged);
  return absl::OkStatus();
}

void SequenceKv::IndexRows(const std::byte* rows, uint32_t count, uint32_t first_row, std::byte* tile) const {
  kernels_->index_keys({.rows = rows + IndexedOffsetBytes(layout_, index_layout_),
                        .row_elements = static_cast<int>(layout_.row_bytes() / DtypeBytes(layout_.dtype)),
                        .num_rows = static_cast<int>(count),
                        .first_row = static_cast<int>(first_row),
                        .head_dim = IndexedDim(layout_, index_layout_),
                        .dtype = layout_.dtype,
                        .tile = tile,
                        .tile_dtype = index_layout_.key_dtype});
}

// Blocks are taken by one thread, and filled by all.
void SequenceKv::AppendTogether(int layer, int end_layer, uint32_t position, uint32_t count, const std::byte* rows,
                                Executor& team) {
  HeadBlocks* const lists = &list(layer, 0);
  const int num_lists = (end_layer - layer) * layout_.num_kv_heads;
  for (int i = 0; i < num_lists; ++i) {
    BlockList& blocks = lists[i].rows;
    while (blocks.size() < BlockList::BlocksFor(position + count)) {
      blocks.Push(reservation_.Allocate(key_parts_, KvBlockReservation::Tile::kAsItIs));
    }
  }
  const size_t first_block = position / kBlockTokens;
  const int num_blocks = static_cast<int>(BlockList::BlocksFor(position + count) - first_block);
  const auto fill = [&](int unit) {
    const int in_list = unit / num_blocks;
    const size_t block = first_block + unit % num_blocks;
    const uint32_t begin = std::max(position, static_cast<uint32_t>(block * kBlockTokens));
    const uint32_t end = std::min(position + count, static_cast<uint32_t>((block + 1) * kBlockTokens));
    const std::byte* const from =
        rows + (static_cast<size_t>(in_list) * count + (begin - position)) * layout_.row_bytes();
    const KvBlock& to = lists[in_list].rows[block];
    const uint32_t first_row = begin % kBlockTokens;
    if (first_row == 0) pool_->ClearTile(to);
    pool_->checksums().Set(to.number(), first_row, end - begin, from);
    std::memcpy(to.rows() + first_row * layout_.row_bytes(), from, (end - begin) * layout_.row_bytes());
    if (HasTile(to)) IndexRows(from, end - begin, first_row, to.tile());
  };
  // Blocks. A row of one layer is what a step waits for.
  const int grain = count > 1 ? 4 : end_layer - layer > 1 ? 16 : 1;
  const int units = num_blocks * num_lists;
  ParallelForOn(*kernels_, team)((units + grain - 1) / grain, [&](size_t part) {
    const int first = static_cast<int>(part) * grain;
    for (int unit = first; unit < std::min(first + grain, units); ++unit) fill(unit);
  });
  const uint32_t page = CompletePages(index_layout_, position);
  const uint32_t pages = CompletePages(index_layout_, position + count);
  if (page < pages) IndexTogether(layer, end_layer, page, pages, team);
  for (int of = layer; of < end_layer; ++of) rows_[of] += count;
}

void SequenceKv::Settle(int layer, uint32_t end) const {
  RowTiers* const tiers = pool_->tiers();
  if (tiers == nullptr) return;
  const Unsettled& unsettled = unsettled_[layer];
  if (unsettled.flushes == tiers->flushes() && unsettled.first < end) tiers->Flush();
}

bool SequenceKv::SettleRowsBelow(int layer, uint32_t end) const {
  if (end > rows_[layer]) return false;
  for (int head = 0; head < layout_.num_kv_heads; ++head) {
    if (list(layer, head).rows.gap_end() > 0) return false;
  }
  Settle(layer, end);
  return true;
}

void SequenceKv::GiveBack(BlockList& rows, uint32_t end) {
  rows.GiveBack(BlockList::BlocksFor(retention_.sink_tokens), retention_.FirstNewest(end) / kBlockTokens, reservation_);
}

uint32_t SequenceKv::FirstKeptBelow(uint32_t position) const {
  size_t first = 0;
  for (const HeadBlocks& head : lists_) {
    first = std::max(first, std::min(head.rows.gap_end(), BlockList::BlocksFor(position)));
  }
  return static_cast<uint32_t>(first * kBlockTokens);
}

void SequenceKv::TakePageBlocks(HeadBlocks& head, uint32_t pages) {
  while (head.bounds.size() < BlockList::BlocksFor(pages)) {
    head.bounds.Push(reservation_.Allocate(page_parts_));
    if (index_layout_.cuboid) head.cuboids.Push(reservation_.Allocate(page_parts_));
  }
}

void SequenceKv::IndexPages(HeadBlocks& head, uint32_t page, uint32_t end) {
  TakePageBlocks(head, end);
  for (; page < end; ++page) IndexPage(head, page);
}

// A block of pages is one thread's.
void SequenceKv::IndexTogether(int layer, int end_layer, uint32_t page, uint32_t end, Executor& team) {
  HeadBlocks* const lists = &list(layer, 0);
  const int num_lists = (end_layer - layer) * layout_.num_kv_heads;
  for (int i = 0; i < num_lists; ++i) TakePageBlocks(lists[i], end);
  const uint32_t first_block = page / kBlockTokens;
  const auto num_blocks = static_cast<int>(BlockList::BlocksFor(end) - first_block);
  const auto fill = [&](int unit) {
    const uint32_t block = first_block + unit % num_blocks;
    const uint32_t end_of_block = std::min(end, (block + 1) * uint32_t{kBlockTokens});
    for (uint32_t p = std::max(page, block * uint32_t{kBlockTokens}); p < end_of_block; ++p) {
      IndexPage(lists[unit / num_blocks], p);
    }
  };
  ParallelForOn(*kernels_, team)(num_blocks * num_lists, [&](size_t unit) { fill(static_cast<int>(unit)); });
}

void SequenceKv::IndexPage(const HeadBlocks& head, uint32_t page) const {
  const uint32_t block = page / kBlockTokens;
  // A tile of kBlockTokens pseudo-keys of 2 * head_dim takes no more than the rows of a block and their tile.
  IndexPageInto(head, page, head.bounds[block].rows(), index_layout_.cuboid ? head.cuboids[block].rows() : nullptr);
}

void SequenceKv::IndexPageInto(const HeadBlocks& head, uint32_t page, std::byte* bounds, std::byte* cuboids) const {
  const uint32_t first_row = page * index_layout_.page_tokens;
  const size_t first_block = first_row / kBlockTokens;
  indexer_->Index(head.rows.rows() + first_block, head.rows.tiles() + first_block, first_row % kBlockTokens,
                  static_cast<int>(page % kBlockTokens), bounds, cuboids);
}

HeadIndex SequenceKv::index(int layer, int head) const {
  const HeadBlocks& lists = list(layer, head);
  const bool keys_in_rows = !keys_have_tiles();
  return {.keys = keys_in_rows ? lists.rows.rows() : lists.rows.tiles(),
          .bounds = index_layout_.page_tokens > 0 ? lists.bounds.rows() : nullptr,
          .cuboids = index_layout_.cuboid ? lists.cuboids.rows() : nullptr,
          .dtype = index_layout_.key_dtype.value_or(layout_.dtype),
          .page_dtype = index_layout_.page_dtype().value_or(layout_.dtype),
          .keys_in_rows = keys_in_rows,
          .page_tokens = index_layout_.page_tokens};
}

absl::Status SequenceKv::Truncate(uint32_t position) {
  for (const HeadBlocks& head : lists_) {
    const size_t tail = position / kBlockTokens;
    const bool is_cut = position % kBlockTokens != 0 && tail < head.rows.size();
    if (is_cut && !head.rows[tail]) {
      return absl::FailedPreconditionError(
          absl::StrCat("rows before position ", position, " were given back: nothing can follow them"));
    }
  }
  const uint32_t pages = CompletePages(index_layout_, position);
  // Blocks that others keep alive do not come back to this sequence's reservation; it needs new ones for the same
  // positions.
  size_t rows_kept_by_others = 0, pages_kept_by_others = 0;
  for (const HeadBlocks& head : lists_) {
    rows_kept_by_others += head.rows.SharedFrom(position);
    pages_kept_by_others += head.bounds.SharedFrom(pages) + head.cuboids.SharedFrom(pages);
  }
  WINNOW_RETURN_IF_ERROR(
      reservation_.Extend(rows_kept_by_others + pages_kept_by_others,
                          pool_->tiers() == nullptr
                              ? 0
                              : rows_kept_by_others * key_parts_.bytes() + pages_kept_by_others * page_parts_.bytes()));
  if (pool_->tiers() != nullptr) pool_->tiers()->Flush();
  for (HeadBlocks& head : lists_) {
    head.rows.Truncate(position, reservation_);
    head.bounds.Truncate(pages, reservation_);
    head.cuboids.Truncate(pages, reservation_);
  }
  for (uint32_t& rows : rows_) rows = std::min(rows, position);
  if (pool_->tiers() == nullptr || position % kBlockTokens == 0) return absl::OkStatus();
  for (const HeadBlocks& head : lists_) {  // blocks that are written to again
    const bool is_tail = head.rows.size() == BlockList::BlocksFor(position) && head.rows.size() > 0;
    if (is_tail && head.rows.back()) pool_->tiers()->fast().Drop(head.rows.back().number());
  }
  return absl::OkStatus();
}

uint32_t SequenceKv::watermark() const {
  return *std::min_element(rows_.begin(), rows_.end());
}

size_t SequenceKv::index_bytes() const {
  size_t bytes = 0;
  for (const HeadBlocks& head : lists_) bytes += head.index_bytes();
  return bytes;
}

size_t SequenceKv::blocks() const {
  size_t n = 0;
  for (const HeadBlocks& head : lists_) n += head.held();
  return n;
}

}  // namespace winnow
