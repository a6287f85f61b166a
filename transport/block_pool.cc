#include "transport/block_pool.h"

#include <bit>
#include <new>
#include <utility>

#include "common/base/check.h"

namespace winnow {

void ReturnBlock::operator()(Block* block) const {
  // The pool may die with its last block, so it is held until the block is back.
  const std::shared_ptr<BlockPool> pool = std::move(block->pool);
  block->window.reset();
  block->consumption.reset();
  if (block->memory != nullptr) std::exchange(block->memory, nullptr)->Free(block->external);
  block->external = nullptr;
  block->by_reference = false;
  std::lock_guard lock(pool->mutex_);
  block->next_free = pool->free_[block->size_class];
  pool->free_[block->size_class] = block;
}

BlockPool::~BlockPool() {
  for (Block* head : free_) {
    while (head != nullptr) {
      Block* block = head;
      head = block->next_free;
      block->~Block();
      ::operator delete (block, std::align_val_t{alignof(Block)});
    }
  }
}

BlockPtr BlockPool::Take(size_t payload_bytes) {
  WINNOW_CHECK(payload_bytes <= wire::kMaxPayloadBytes);
  const size_t rounded = std::bit_ceil(payload_bytes);
  const uint32_t size_class =
      rounded <= kSmallestBytes ? 0 : static_cast<uint32_t>(std::countr_zero(rounded / kSmallestBytes));
  Block* block = nullptr;
  {
    std::lock_guard lock(mutex_);
    block = free_[size_class];
    if (block != nullptr) {
      free_[size_class] = block->next_free;
    } else {
      ++allocated_blocks_;
    }
  }
  if (block == nullptr) {
    block =
        new (::operator new (sizeof(Block) + (kSmallestBytes << size_class), std::align_val_t{alignof(Block)})) Block;
    block->size_class = size_class;
  }
  block->pool = shared_from_this();
  block->payload_bytes = static_cast<uint32_t>(payload_bytes);
  return BlockPtr(block);
}

size_t BlockPool::allocated_blocks() const {
  std::lock_guard lock(mutex_);
  return allocated_blocks_;
}

}  // namespace winnow
