#include "cache_rank/store/scrubber.h"

#include <algorithm>

namespace winnow {
namespace {

// What a slow loop may catch up with.
constexpr double kMostSeconds = 0.2;

// A look at a block that holds nothing takes about as long as reading so many bytes. There may be millions of them.
constexpr uint64_t kLookBytes = 8;

}  // namespace

void Scrubber::Tick(std::chrono::steady_clock::time_point now) {
  if (bytes_per_s_ == 0) return;
  const double seconds = ticked_ ? std::chrono::duration<double>(now - last_tick_).count() : 0;
  ticked_ = true;
  last_tick_ = now;
  const auto rate = static_cast<double>(bytes_per_s_);
  allowed_bytes_ = std::min(allowed_bytes_ + static_cast<int64_t>(rate * seconds),
                            std::max(static_cast<int64_t>(rate * kMostSeconds), int64_t{1}));
}

bool Scrubber::RunOnce() {
  if (allowed_bytes_ <= 0) return false;
  if (pool_->tiers() != nullptr) pool_->tiers()->Flush();  // rows on their way are not in their blocks
  uint64_t bytes = 0;
  looks_ = 0;
  while (bytes + looks_ * kLookBytes < kSliceBytes) {
    const uint64_t of_block = Step();
    bytes += of_block;
    if (of_block > 0 || next_block_ < read_.size()) continue;
    const bool was_empty = !found_some_;
    counts_.passes += !was_empty;
    BeginPass();
    if (was_empty) allowed_bytes_ = 0;  // there is nothing to be read
    break;
  }
  allowed_bytes_ -= static_cast<int64_t>(bytes + looks_ * kLookBytes);
  counts_.bytes += bytes;
  return bytes + looks_ > 0;
}

void Scrubber::BeginPass() {
  sequences_ = store_->sequence_ids();
  list_ = block_of_list_ = 0;
  read_.assign(pool_->total(), false);
  next_block_ = 0;
  found_some_ = false;
}

uint64_t Scrubber::Step() {
  while (!sequences_.empty()) {
    CachedSequence* const sequence = store_->Find(sequences_.back());
    const bool usable = sequence != nullptr && !sequence->kv.is_damaged();
    if (usable && list_ < sequence->num_lists()) {
      if (block_of_list_ < sequence->kv.index_blocks(list_)) return StepOfSequence(*sequence);
      ++list_;
      block_of_list_ = 0;
      continue;
    }
    sequences_.pop_back();
    list_ = block_of_list_ = 0;
  }
  for (; next_block_ < read_.size() && looks_ * kLookBytes < kSliceBytes; ++next_block_, ++looks_) {
    if (read_[next_block_] || !pool_->in_use(next_block_) || pool_->checksums().num_rows(next_block_) == 0) continue;
    found_some_ = true;
    CheckBlock(next_block_++);
    return pool_->block_bytes();
  }
  return 0;
}

uint64_t Scrubber::StepOfSequence(CachedSequence& sequence) {
  constexpr uint64_t kLeastBytes = 64;  // of blocks that were read already, or given back
  found_some_ = true;
  const size_t b = block_of_list_++;
  const std::optional<uint32_t> block = sequence.kv.row_block_number(list_, b);
  if (block.has_value()) {
    if (read_[*block]) return kLeastBytes;
    read_[*block] = true;
    if (!CheckBlock(*block)) return pool_->block_bytes();
  }
  const SequenceKv::IndexCheck check = sequence.kv.MendIndex(list_, b, scratch_);
  counts_.mended_blocks += check.differed;
  return std::max<uint64_t>(check.bytes, kLeastBytes);
}

bool Scrubber::CheckBlock(uint32_t block) {
  const RowChecksums& checksums = pool_->checksums();
  const uint32_t rows = checksums.num_rows(block);
  if (RowTiers* const tiers = pool_->tiers(); tiers != nullptr) {
    const std::byte* const copy = tiers->fast().Find(block);
    if (copy != nullptr && checksums.FindDamaged(block, 0, rows, copy) < rows) tiers->GiveUpCopy(block);
  }
  const uint32_t damaged = checksums.FindDamaged(block, 0, rows, pool_->stored_rows(block));
  if (damaged == rows) return true;
  ++counts_.damaged_rows;
  store_->CondemnBlock(block, damaged);
  return false;
}

}  // namespace winnow
