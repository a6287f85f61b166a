#include "cache_rank/sequence_kv.h"

#include <algorithm>
#include <cstring>

#include "common/base/check.h"
#include "common/transport/wire.h"

namespace winnow {
namespace {

size_t BlocksFor(uint32_t positions) {
  return (static_cast<size_t>(positions) + kBlockTokens - 1) / kBlockTokens;
}

}  // namespace

KvRetention KvRetention::Of(const SelectionSpec& spec, const KvLayout& layout) {
  KvRetention retention;
  if (!AnyList(0, layout.num_lists(), [&](size_t list) { return winnow::Streams(spec, list); })) return retention;
  for (size_t list = 0; list < layout.num_lists(); ++list) retention.streams.push_back(winnow::Streams(spec, list));
  retention.sink_tokens = spec.sink_tokens;
  retention.newest_tokens = wire::RingTokens(spec.recent_tokens, kBlockTokens, kSlotPageTokens) + kRestartSlack;
  return retention;
}

size_t KvRetention::MostBlocks(size_t list, uint32_t max_positions) const {
  const size_t all = BlocksFor(max_positions);
  // The newest rows may begin inside a block, and one more is pushed before the oldest goes.
  return Streams(list) ? std::min(all, BlocksFor(sink_tokens) + BlocksFor(newest_tokens) + 2) : all;
}

void SequenceKv::BlockList::Push(KvBlock block) {
  rows.push_back(block ? block.rows() : nullptr);
  tiles.push_back(block ? block.tile() : nullptr);
  blocks.push_back(std::move(block));
}

void SequenceKv::BlockList::Pop() {
  rows.pop_back();
  tiles.pop_back();
  blocks.pop_back();
  given_back_end = std::min(given_back_end, blocks.size());
}

absl::StatusOr<SequenceKv> SequenceKv::Create(KvBlockPool* pool, const KernelTable* kernels, const KvLayout& layout,
                                              uint32_t max_positions, KvRetention retention) {
  size_t blocks = 0;
  for (size_t list = 0; list < layout.num_lists(); ++list) blocks += retention.MostBlocks(list, max_positions);
  auto reservation = pool->Reserve(blocks);
  if (!reservation.ok()) {
    return Annotate(reservation.status(), absl::StrCat(max_positions, " positions in ", layout.num_layers,
                                                       " layers of ", layout.num_kv_heads, " kv heads"));
  }
  SequenceKv kv(*std::move(reservation), kernels, layout, max_positions, std::move(retention));
  kv.pool_ = pool;
  return kv;
}

SequenceKv::SequenceKv(KvBlockReservation reservation, const KernelTable* kernels, const KvLayout& layout,
                       uint32_t max_positions, KvRetention retention)
    : kernels_(kernels),
      layout_(layout),
      max_positions_(max_positions),
      retention_(std::move(retention)),
      reservation_(std::move(reservation)),
      lists_(layout.num_lists()),
      rows_(layout.num_layers) {
  for (BlockList& list : lists_) {
    list.blocks.reserve(BlocksFor(max_positions));
    list.rows.reserve(BlocksFor(max_positions));
    list.tiles.reserve(BlocksFor(max_positions));
  }
}

absl::StatusOr<SequenceKv> SequenceKv::Fork(uint32_t max_positions) const {
  const uint32_t rows = watermark();
  if (max_positions < rows) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_positions is ", max_positions, ", but ", rows, " positions are stored"));
  }
  const size_t full = rows / kBlockTokens;
  size_t wanted = 0;
  for (size_t i = 0; i < lists_.size(); ++i) {
    wanted += retention_.MostBlocks(i, max_positions) - (retention_.Streams(i) ? 0 : full);
  }
  WINNOW_ASSIGN_OR_RETURN(KvBlockReservation reservation, pool_->Reserve(wanted));
  SequenceKv fork(std::move(reservation), kernels_, layout_, max_positions, retention_);
  fork.pool_ = pool_;
  std::fill(fork.rows_.begin(), fork.rows_.end(), rows);
  for (size_t i = 0; i < lists_.size(); ++i) {
    for (size_t b = 0; b < BlocksFor(rows); ++b) {
      const KvBlock& block = lists_[i].blocks[b];
      if (!block) {
        fork.lists_[i].Push(KvBlock());
      } else if (b < full && !retention_.Streams(i)) {
        fork.lists_[i].Push(block.Share());
      } else {
        KvBlock copy = fork.reservation_.Allocate();
        std::memcpy(copy.rows(), block.rows(), pool_->block_bytes());
        fork.lists_[i].Push(std::move(copy));
      }
    }
    fork.lists_[i].given_back_end = lists_[i].given_back_end;
  }
  return fork;
}

absl::Status SequenceKv::Append(int layer, uint32_t position, uint32_t count, const std::byte* rows) {
  if (position != rows_[layer]) {
    return absl::FailedPreconditionError(
        absl::StrCat("layer ", layer, " continues at position ", rows_[layer], ", rows came for ", position));
  }
  if (count > max_positions_ - position) {
    return absl::OutOfRangeError(absl::StrCat("rows up to position ", uint64_t{position} + count, " exceed the ",
                                              max_positions_, " positions that were admitted"));
  }
  const size_t row_bytes = layout_.row_bytes();
  for (int head = 0; head < layout_.num_kv_heads; ++head) {
    BlockList& blocks = list(layer, head);
    for (uint32_t done = 0; done < count;) {
      const uint32_t first_row = (position + done) % kBlockTokens;
      const uint32_t n = std::min<uint32_t>(count - done, kBlockTokens - first_row);
      if (first_row == 0) blocks.Push(reservation_.Allocate());
      const KvBlock& tail = blocks.blocks.back();
      std::memcpy(tail.rows() + first_row * row_bytes, rows, n * row_bytes);
      kernels_->index_keys({.rows = rows,
                            .num_rows = static_cast<int>(n),
                            .first_row = static_cast<int>(first_row),
                            .head_dim = layout_.head_dim,
                            .dtype = layout_.dtype,
                            .tile = tail.tile()});
      rows += n * row_bytes;
      done += n;
      if (retention_.Streams(layer * layout_.num_kv_heads + head)) GiveBack(blocks, position + done);
    }
  }
  rows_[layer] += count;
  return absl::OkStatus();
}

void SequenceKv::GiveBack(BlockList& blocks, uint32_t rows) {
  const size_t end = retention_.FirstNewest(rows) / kBlockTokens;
  for (size_t b = std::max(blocks.given_back_end, BlocksFor(retention_.sink_tokens)); b < end; ++b) {
    reservation_.Reclaim(std::move(blocks.blocks[b]));
    blocks.rows[b] = blocks.tiles[b] = nullptr;
    blocks.given_back_end = b + 1;
  }
}

uint32_t SequenceKv::FirstKeptBelow(uint32_t position) const {
  uint32_t first = 0;
  for (const BlockList& blocks : lists_) {
    const size_t end = std::min<size_t>(blocks.given_back_end, BlocksFor(position));
    first = std::max(first, static_cast<uint32_t>(end * kBlockTokens));
  }
  return first;
}

absl::Status SequenceKv::Truncate(uint32_t position) {
  // Blocks that others keep alive do not come back to this sequence's reservation; it needs new ones for the same
  // positions.
  size_t kept_by_others = 0;
  for (const BlockList& blocks : lists_) {
    for (size_t b = position / kBlockTokens; b < blocks.blocks.size(); ++b) {
      kept_by_others += blocks.blocks[b] && blocks.blocks[b].shared();
    }
  }
  WINNOW_RETURN_IF_ERROR(reservation_.Extend(kept_by_others));
  for (BlockList& blocks : lists_) {
    while (blocks.blocks.size() > BlocksFor(position)) {
      KvBlock block = std::move(blocks.blocks.back());
      blocks.Pop();
      if (block && !block.shared()) reservation_.Reclaim(std::move(block));
    }
    const bool cuts_tail = position % kBlockTokens != 0 && blocks.blocks.size() == BlocksFor(position);
    if (cuts_tail && blocks.blocks.back() && blocks.blocks.back().shared()) {
      KvBlock copy = reservation_.Allocate();
      std::memcpy(copy.rows(), blocks.blocks.back().rows(), pool_->block_bytes());
      blocks.Pop();
      blocks.Push(std::move(copy));
    }
  }
  for (uint32_t& rows : rows_) rows = std::min(rows, position);
  return absl::OkStatus();
}

uint32_t SequenceKv::watermark() const {
  return *std::min_element(rows_.begin(), rows_.end());
}

void SequenceKv::CopyRows(int layer, int head, uint32_t first, uint32_t count, std::byte* out) const {
  const BlockList& blocks = list(layer, head);
  const size_t row_bytes = layout_.row_bytes();
  while (count > 0) {
    const uint32_t row = first % kBlockTokens;
    const uint32_t n = std::min<uint32_t>(count, kBlockTokens - row);
    const KvBlock& block = blocks.blocks[first / kBlockTokens];
    if (block) {
      std::memcpy(out, block.rows() + row * row_bytes, n * row_bytes);
    } else {
      std::memset(out, 0, n * row_bytes);
    }
    out += n * row_bytes;
    first += n;
    count -= n;
  }
}

size_t SequenceKv::blocks() const {
  size_t n = 0;
  for (const BlockList& list : lists_) {
    n += std::count_if(list.blocks.begin(), list.blocks.end(), [](const KvBlock& block) { return bool(block); });
  }
  return n;
}

}  // namespace winnow
