#include "cache_rank/block_list.h"

#include <cstring>
#include <utility>

namespace winnow {
namespace {

KvBlock CopyOf(const KvBlock& block, KvBlockReservation& reservation) {
  KvBlock copy = reservation.Allocate();
  std::memcpy(copy.rows(), block.rows(), block.bytes());
  return copy;
}

}  // namespace

void BlockList::Reserve(size_t blocks) {
  blocks_.reserve(blocks);
  rows_.reserve(blocks);
  tiles_.reserve(blocks);
}

void BlockList::Push(KvBlock block) {
  rows_.push_back(block.rows());
  tiles_.push_back(block.tile());
  blocks_.push_back(std::move(block));
}

void BlockList::Pop() {
  rows_.pop_back();
  tiles_.pop_back();
  blocks_.pop_back();
}

void BlockList::CopyFrom(const BlockList& source, uint32_t units, KvBlockReservation& reservation) {
  const size_t full = units / kBlockTokens;
  for (size_t b = 0; b < full; ++b) Push(source.blocks_[b].Share());
  if (units % kBlockTokens != 0) Push(CopyOf(source.blocks_[full], reservation));
}

size_t BlockList::SharedFrom(uint32_t units) const {
  size_t shared = 0;
  for (size_t b = units / kBlockTokens; b < blocks_.size(); ++b) shared += blocks_[b].shared();
  return shared;
}

void BlockList::Truncate(uint32_t units, KvBlockReservation& reservation) {
  while (blocks_.size() > BlocksFor(units)) {
    KvBlock block = std::move(blocks_.back());
    Pop();
    if (!block.shared()) reservation.Reclaim(std::move(block));
  }
  const bool cuts_tail = units % kBlockTokens != 0 && blocks_.size() == BlocksFor(units);
  if (cuts_tail && blocks_.back().shared()) {
    KvBlock copy = CopyOf(blocks_.back(), reservation);
    Pop();
    Push(std::move(copy));
  }
}

}  // namespace winnow
