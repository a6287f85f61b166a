#include "cache_rank/store/block_list.h"

#include <algorithm>
#include <utility>

namespace winnow {

void BlockList::Reserve(size_t blocks) {
  blocks_.reserve(blocks);
  rows_.reserve(blocks);
  tiles_.reserve(blocks);
}

void BlockList::Push(KvBlock block) {
  rows_.push_back(block ? block.rows() : nullptr);
  tiles_.push_back(block ? block.tile() : nullptr);
  blocks_.push_back(std::move(block));
}

void BlockList::Pop() {
  rows_.pop_back();
  tiles_.pop_back();
  blocks_.pop_back();
  gap_end_ = std::min(gap_end_, blocks_.size());
}

void BlockList::CopyFrom(const BlockList& source, uint32_t units, KvBlockReservation& reservation) {
  const size_t full = units / kBlockTokens;
  for (size_t b = 0; b < full; ++b) Push(source.blocks_[b].Share());
  if (units % kBlockTokens != 0) Push(reservation.CopyOf(source.blocks_[full]));
}

void BlockList::CopyWholeFrom(const BlockList& source, uint32_t units, KvBlockReservation& reservation) {
  for (size_t b = 0; b < BlocksFor(units); ++b) {
    const KvBlock& block = source.blocks_[b];
    Push(block ? reservation.CopyOf(block) : KvBlock());
  }
  gap_end_ = std::min(source.gap_end_, blocks_.size());
}

void BlockList::GiveBack(size_t first, size_t end, KvBlockReservation& reservation) {
  for (size_t b = std::max(first, gap_end_); b < end; ++b) {
    reservation.Reclaim(std::move(blocks_[b]));
    rows_[b] = tiles_[b] = nullptr;
    gap_end_ = b + 1;
  }
}

size_t BlockList::held() const {
  return std::count_if(blocks_.begin(), blocks_.end(), [](const KvBlock& block) { return bool(block); });
}

size_t BlockList::SharedFrom(uint32_t units) const {
  size_t shared = 0;
  for (size_t b = units / kBlockTokens; b < blocks_.size(); ++b) shared += blocks_[b] && blocks_[b].shared();
  return shared;
}

void BlockList::Truncate(uint32_t units, KvBlockReservation& reservation) {
  while (blocks_.size() > BlocksFor(units)) {
    KvBlock block = std::move(blocks_.back());
    Pop();
    if (block && !block.shared()) reservation.Reclaim(std::move(block));
  }
  const bool cuts_tail = units % kBlockTokens != 0 && blocks_.size() == BlocksFor(units);
  if (cuts_tail && blocks_.back() && blocks_.back().shared()) {
    KvBlock copy = reservation.CopyOf(blocks_.back());
    Pop();
    Push(std::move(copy));
  }
}

}  // namespace winnow
