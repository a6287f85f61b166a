#include "cache_rank/kv_block_pool.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "common/base/check.h"

namespace winnow {
namespace {

size_t TileBytes(const KvLayout& layout) {
  return kBlockTokens * layout.row_bytes() / 2;
}

}  // namespace

size_t BlockBytes(const KvLayout& layout) {
  return (layout.block_bytes() + TileBytes(layout) + 63) / 64 * 64;
}

KvBlock::~KvBlock() {
  if (pool_ != nullptr) pool_->Unref(index_);
}

KvBlock KvBlock::Share() const {
  ++pool_->references_[index_];
  return KvBlock(pool_, index_);
}

bool KvBlock::shared() const {
  return pool_->references_[index_] > 1;
}
std::byte* KvBlock::rows() const {
  return pool_->arena_ + index_ * pool_->block_bytes_;
}
std::byte* KvBlock::tile() const {
  return rows() + pool_->rows_bytes_;
}

size_t KvBlock::bytes() const {
  return pool_->block_bytes_;
}

KvBlockReservation::~KvBlockReservation() {
  if (pool_ != nullptr) pool_->reserved_ -= count_;
}

absl::Status KvBlockReservation::Extend(size_t blocks) {
  WINNOW_RETURN_IF_ERROR(pool_->CheckFree(blocks));
  pool_->reserved_ += blocks;
  count_ += blocks;
  return absl::OkStatus();
}

KvBlock KvBlockReservation::Allocate() {
  WINNOW_CHECK(count_ > 0);
  --count_;
  --pool_->reserved_;
  ++pool_->used_;
  uint32_t index = pool_->next_fresh_;
  if (pool_->free_.empty()) {
    ++pool_->next_fresh_;
  } else {
    index = pool_->free_.back();
    pool_->free_.pop_back();
  }
  WINNOW_CHECK(index < pool_->total_ && pool_->references_[index] == 0);
  pool_->references_[index] = 1;
  KvBlock block(pool_, index);
  std::memset(block.tile(), 0, pool_->block_bytes_ - pool_->rows_bytes_);
  return block;
}

void KvBlockReservation::Reclaim(KvBlock block) {
  WINNOW_CHECK(!block.shared());
  block = KvBlock();
  ++count_;
  ++pool_->reserved_;
}

absl::StatusOr<std::unique_ptr<KvBlockPool>> KvBlockPool::Create(size_t memory_bytes, const KvLayout& layout) {
  const size_t total = std::min<size_t>(memory_bytes / BlockBytes(layout), UINT32_MAX);
  if (total == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("memory_bytes is ", memory_bytes, ", less than one block of ", BlockBytes(layout), " bytes"));
  }
  const size_t arena_bytes = total * BlockBytes(layout);
  // NORESERVE: pages are taken as blocks are first used.
  void* arena = mmap(nullptr, arena_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (arena == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot map ", arena_bytes, " bytes: ", std::strerror(errno)));
  }
  madvise(arena, arena_bytes, MADV_HUGEPAGE);  // a hint; small pages work too
  return std::unique_ptr<KvBlockPool>(new KvBlockPool(static_cast<std::byte*>(arena), arena_bytes, total, layout));
}

KvBlockPool::KvBlockPool(std::byte* arena, size_t arena_bytes, size_t total, const KvLayout& layout)
    : arena_(arena),
      arena_bytes_(arena_bytes),
      total_(total),
      rows_bytes_(layout.block_bytes()),
      block_bytes_(BlockBytes(layout)),
      references_(total) {
  free_.reserve(total);
}

KvBlockPool::~KvBlockPool() {
  WINNOW_CHECK(used_ == 0 && reserved_ == 0);
  munmap(arena_, arena_bytes_);
}

absl::StatusOr<KvBlockReservation> KvBlockPool::Reserve(size_t blocks) {
  WINNOW_RETURN_IF_ERROR(CheckFree(blocks));
  reserved_ += blocks;
  return KvBlockReservation(this, blocks);
}

absl::Status KvBlockPool::CheckFree(size_t blocks) {
  if (blocks > free() && reclaimer_) reclaimer_(blocks);
  if (blocks <= free()) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(blocks, " blocks of ", block_bytes_, " bytes wanted, ", free(),
                                                   " free (", total_, " in all, ", used_, " used, ", reserved_,
                                                   " reserved)"));
}

void KvBlockPool::Unref(uint32_t index) {
  if (--references_[index] > 0) return;
  --used_;
  free_.push_back(index);
}

}  // namespace winnow
