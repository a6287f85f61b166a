#include "cache_rank/store/kv_block_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/base/check.h"

namespace winnow {
namespace {

// Pages are taken no further ahead of the blocks in use: promises for long answers may never be used up.
constexpr size_t kMostAheadBytes = size_t{2} << 30;

// Keys of int8 are scored in their rows.
size_t TileBytes(const KvLayout& layout) {
  if (layout.dtype == Dtype::kI8) return 0;
  return kBlockTokens * static_cast<size_t>(std::max(layout.head_dim, layout.row.index_dim)) * DtypeBytes(layout.dtype);
}

}  // namespace

size_t BlockBytes(const KvLayout& layout) {
  return (layout.block_bytes() + TileBytes(layout) + 63) / 64 * 64;
}

absl::Status CheckPoolMemory(size_t memory_bytes, const KvLayout& layout, size_t num_lists) {
  const size_t needed = num_lists * BlockBytes(layout);
  if (memory_bytes >= needed) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "memory for KV is ", memory_bytes, " bytes and needs ", needed, " at least: a block of ", BlockBytes(layout),
      " for each of ", num_lists, " lists (layer, kv head); raise --cache-memory (--memory of winnow cache-rank)"));
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
  if (pool_->tiers_ != nullptr && pool_->fast_parts_[index_].parts.rows_bytes > 0) {
    return pool_->fast_parts_[index_].memory;
  }
  return pool_->arena_ + index_ * pool_->block_bytes_;
}
std::byte* KvBlock::tile() const {
  if (pool_->tiers_ != nullptr && pool_->fast_parts_[index_].parts.tile_bytes > 0) {
    return pool_->fast_parts_[index_].memory;
  }
  return pool_->arena_ + index_ * pool_->block_bytes_ + pool_->rows_bytes_;
}

size_t KvBlock::tile_bytes() const {
  const size_t in_fast_tier = pool_->tiers_ == nullptr ? 0 : pool_->fast_parts_[index_].parts.tile_bytes;
  return in_fast_tier > 0 ? in_fast_tier : pool_->block_bytes_ - pool_->rows_bytes_;
}
size_t KvBlock::page_bytes() const {
  const size_t in_fast_tier = pool_->tiers_ == nullptr ? 0 : pool_->fast_parts_[index_].parts.rows_bytes;
  return in_fast_tier > 0 ? in_fast_tier : pool_->block_bytes_;
}

size_t KvBlock::index_bytes() const {
  return pool_->tiers_ == nullptr ? 0 : pool_->fast_parts_[index_].parts.bytes();
}

KvBlockReservation::~KvBlockReservation() {
  if (pool_ == nullptr) return;
  pool_->reserved_ -= count_;
  if (pool_->tiers_ != nullptr) pool_->tiers_->fast().Unreserve(index_bytes_);
}

absl::Status KvBlockReservation::Extend(size_t blocks, size_t index_bytes) {
  WINNOW_RETURN_IF_ERROR(pool_->Promise(blocks, index_bytes));
  count_ += blocks;
  index_bytes_ += index_bytes;
  return absl::OkStatus();
}

KvBlock KvBlockReservation::Allocate(const IndexParts& index, Tile tile) {
  WINNOW_CHECK(count_ > 0);
  WINNOW_CHECK(index.rows_bytes == 0 || index.tile_bytes == 0);
  --count_;
  --pool_->reserved_;
  ++pool_->used_;
  uint32_t number = pool_->next_fresh_;
  if (pool_->free_.empty()) {
    ++pool_->next_fresh_;
    pool_->TakePages();
  } else {
    number = pool_->free_.back();
    pool_->free_.pop_back();
  }
  WINNOW_CHECK(number < pool_->total_ && pool_->references_[number] == 0);
  pool_->references_[number] = 1;
  pool_->checksums_->Clear(number);
  KvBlock block(pool_, number);
  if (pool_->tiers_ != nullptr && index.bytes() > 0) {
    WINNOW_CHECK(index.bytes() <= index_bytes_);
    index_bytes_ -= index.bytes();
    pool_->fast_parts_[number] = {pool_->tiers_->fast().AllocateIndex(index.bytes()), index};
  } else if (tile == Tile::kZeroed) {
    pool_->ClearTile(block);
  }
  return block;
}

KvBlock KvBlockReservation::CopyOf(const KvBlock& block) {
  const IndexParts parts = pool_->tiers_ == nullptr ? IndexParts() : pool_->fast_parts_[block.index_].parts;
  if (pool_->tiers_ != nullptr) pool_->tiers_->Flush();  // rows of the block may be on their way to it
  KvBlock copy = Allocate(parts);
  pool_->checksums_->Copy(block.index_, copy.index_);
  std::memcpy(copy.rows(), block.rows(), parts.rows_bytes > 0 ? parts.rows_bytes : pool_->rows_bytes_);
  if (parts.rows_bytes > 0) return copy;
  std::memcpy(copy.tile(), block.tile(),
              parts.tile_bytes > 0 ? parts.tile_bytes : pool_->block_bytes_ - pool_->rows_bytes_);
  return copy;
}

void KvBlockReservation::Reclaim(KvBlock block) {
  WINNOW_CHECK(!block.shared());
  index_bytes_ += block.index_bytes();
  std::exchange(block.pool_, nullptr)->Unref(block.index_, /*keeps_index_promised=*/true);
  ++count_;
  ++pool_->reserved_;
}

absl::StatusOr<std::unique_ptr<KvBlockPool>> KvBlockPool::Create(size_t memory_bytes, const KvLayout& layout,
                                                                 std::unique_ptr<RowTiers> tiers, int page_threads) {
  WINNOW_RETURN_IF_ERROR(CheckPoolMemory(memory_bytes, layout, layout.num_kv_heads));
  const size_t total = std::min<size_t>(memory_bytes / BlockBytes(layout), UINT32_MAX);
  const size_t arena_bytes = total * BlockBytes(layout);
  WINNOW_ASSIGN_OR_RETURN(std::unique_ptr<RowChecksums> checksums, RowChecksums::Create(total, layout.row_bytes()));
  // NORESERVE: pages are taken as blocks are first used.
  void* arena = mmap(nullptr, arena_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (arena == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot map ", arena_bytes, " bytes: ", std::strerror(errno)));
  }
  madvise(arena, arena_bytes, MADV_HUGEPAGE);  // a hint; small pages work too
  return std::unique_ptr<KvBlockPool>(new KvBlockPool(static_cast<std::byte*>(arena), arena_bytes, total, layout,
                                                      std::move(tiers), std::move(checksums), page_threads));
}

KvBlockPool::KvBlockPool(std::byte* arena, size_t arena_bytes, size_t total, const KvLayout& layout,
                         std::unique_ptr<RowTiers> tiers, std::unique_ptr<RowChecksums> checksums, int page_threads)
    : arena_(arena),
      arena_bytes_(arena_bytes),
      total_(total),
      rows_bytes_(layout.block_bytes()),
      block_bytes_(BlockBytes(layout)),
      references_(total),
      tiers_(std::move(tiers)),
      checksums_(std::move(checksums)) {
  if (page_threads > 0) page_taker_ = std::make_unique<PageTaker>(arena_, arena_bytes_, page_threads);
  free_.reserve(total);
  if (tiers_ != nullptr) fast_parts_.resize(total);
}

KvBlockPool::~KvBlockPool() {
  WINNOW_CHECK(used_ == 0 && reserved_ == 0);
  page_taker_.reset();
  munmap(arena_, arena_bytes_);
}

absl::StatusOr<KvBlockReservation> KvBlockPool::Reserve(size_t blocks, size_t index_bytes) {
  WINNOW_RETURN_IF_ERROR(Promise(blocks, index_bytes));
  return KvBlockReservation(this, blocks, index_bytes);
}

void KvBlockPool::ClearTile(const KvBlock& block) const {
  std::memset(block.tile(), 0, block_bytes_ - rows_bytes_);
}

absl::Status KvBlockPool::Promise(size_t blocks, size_t index_bytes) {
  if ((blocks > free() || index_bytes > free_index_bytes()) && reclaimer_) reclaimer_(blocks, index_bytes);
  if (blocks > free()) {
    return absl::ResourceExhaustedError(absl::StrCat(blocks, " blocks of ", block_bytes_, " bytes wanted, ", free(),
                                                     " free (", total_, " in all, ", used_, " used, ", reserved_,
                                                     " reserved)"));
  }
  if (tiers_ != nullptr) WINNOW_RETURN_IF_ERROR(tiers_->fast().Reserve(index_bytes));
  reserved_ += blocks;
  TakePages();
  return absl::OkStatus();
}

void KvBlockPool::TakePages() {
  if (page_taker_ == nullptr) return;
  const size_t promised = reserved_ > free_.size() ? reserved_ - free_.size() : 0;  // blocks that were never used
  page_taker_->Want(next_fresh_ * block_bytes_ + std::min(promised * block_bytes_, kMostAheadBytes));
}

void KvBlockPool::Unref(uint32_t index, bool keeps_index_promised) {
  if (--references_[index] > 0) return;
  --used_;
  free_.push_back(index);
  if (tiers_ == nullptr) return;
  tiers_->Flush();  // rows on their way to it would arrive in its next use
  tiers_->fast().Drop(index);
  FastParts& fast = fast_parts_[index];
  if (fast.memory != nullptr) tiers_->fast().FreeIndex(fast.memory, fast.parts.bytes(), keeps_index_promised);
  fast = {};
}

}  // namespace winnow
