#include "cache_rank/store/row_tiers.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "cache_rank/store/block_list.h"
#include "common/base/check.h"
#include "kernels/parallel_for.h"

namespace winnow {
namespace {

using Clock = std::chrono::steady_clock;

// Below this one thread is done before others have woken up.
constexpr size_t kMinParallelBytes = size_t{256} << 10;

size_t StagingBytes(const RowTiers::Options& options) {
  return std::min(options.max_staging_bytes, options.fast.memory_bytes / 8);
}

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

absl::Status RowTiers::CheckMemory(const Options& options, const KvLayout& layout) {
  const size_t memory = options.fast.memory_bytes, staging = StagingBytes(options);
  const size_t needed = staging + layout.num_kv_heads * layout.block_bytes();
  if (memory >= needed) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the fast tier has ", memory, " bytes and needs ", needed,
                                                 " at least: ", staging, " of staging and ", layout.num_kv_heads, " x ",
                                                 layout.block_bytes(),
                                                 " for a block of each kv head of a layer; raise --fast-memory"));
}

absl::StatusOr<std::unique_ptr<RowTiers>> RowTiers::Create(const Options& options, const KvLayout& layout,
                                                           const KernelTable* kernels, Executor* executor) {
  WINNOW_RETURN_IF_ERROR(CheckMemory(options, layout));
  return std::unique_ptr<RowTiers>(new RowTiers(options, StagingBytes(options), layout, kernels, executor));
}

RowTiers::RowTiers(const Options& options, size_t staging_bytes, const KvLayout& layout, const KernelTable* kernels,
                   Executor* executor)
    : admit_rows_(std::max(options.admit_rows, 1u)),
      row_bytes_(layout.row_bytes()),
      kernels_(kernels),
      executor_(executor),
      fast_({.memory_bytes = options.fast.memory_bytes - staging_bytes,
             .high_watermark = options.fast.high_watermark,
             .low_watermark = options.fast.low_watermark},
            layout.block_bytes()),
      staging_(staging_bytes) {}

const std::byte* RowTiers::Stage(const std::byte* rows, size_t bytes) {
  if (staged_bytes_ + bytes > staging_.size()) Flush();
  flushes_before_write_ = flushes_;
  if (bytes > staging_.size()) return rows;
  std::byte* staged = staging_.data() + staged_bytes_;
  std::memcpy(staged, rows, bytes);
  staged_bytes_ += bytes;
  return staged;
}

void RowTiers::EndWrite(const std::byte* staged) {
  const bool in_staging = staged >= staging_.data() && staged < staging_.data() + staging_.size();
  if (!in_staging || flushes_ != flushes_before_write_) Flush();
}

bool RowTiers::Flush() {
  if (runs_.empty()) return false;
  const Clock::time_point start = Clock::now();
  CopyRuns(runs_);
  for (const Run& run : runs_) counts_.scattered_rows += run.bytes / row_bytes_;
  ++counts_.scatters;
  counts_.scatter_seconds += SecondsSince(start);
  runs_.clear();
  staged_bytes_ = 0;
  ++flushes_;
  return true;
}

uint32_t RowTiers::Gather(const BlockList& rows, size_t complete_blocks, std::span<const uint32_t> positions,
                          std::byte* out) {
  if (positions.empty()) return 0;
  const Clock::time_point start = Clock::now();
  if (blocks_.size() < rows.size()) blocks_.resize(rows.size());
  loads_.clear();
  uint32_t missed = 0, loaded = 0;
  for (size_t i = 0; i < positions.size();) {
    const uint32_t at = positions[i] / kBlockTokens;
    size_t end = i + 1;
    while (end < positions.size() && positions[end] / kBlockTokens == at) ++end;
    const auto wanted = static_cast<uint32_t>(end - i);
    i = end;
    const KvBlock& block = rows[at];
    std::byte* copy = fast_.Touch(block.number());
    if (copy != nullptr) {
      counts_.hit_rows += wanted;
    } else {
      missed += wanted;
      if (wanted >= admit_rows_ && at < complete_blocks) copy = fast_.Admit(block.number());
      if (copy != nullptr) loads_.push_back({block.rows(), copy, kBlockTokens * row_bytes_});
      loaded += copy != nullptr ? kBlockTokens : wanted;
    }
    blocks_[at] = copy != nullptr ? copy : block.rows();
    if (copy == nullptr) continue;
    fast_.Pin(block.number());
    pinned_.push_back(block.number());
  }
  CopyRuns(loads_);
  kernels_->gather_rows({.blocks = blocks_.data(),
                         .positions = positions.data(),
                         .num_rows = static_cast<uint32_t>(positions.size()),
                         .row_bytes = row_bytes_,
                         .out = out});
  for (const uint32_t block : pinned_) fast_.Unpin(block);
  pinned_.clear();
  if (missed == 0) return 0;
  counts_.missed_rows += missed;
  counts_.loaded_rows += loaded;
  ++counts_.gathers;
  counts_.gather_seconds += SecondsSince(start);
  return loaded;
}

bool RowTiers::GiveUpCopy(uint32_t block) {
  if (fast_.Find(block) == nullptr) return false;
  fast_.Drop(block);
  ++counts_.damaged_copies;
  return true;
}

uint32_t RowTiers::CopyRun(uint32_t block, const std::byte* block_rows, uint32_t first, uint32_t count,
                           std::byte* out) {
  const std::byte* copy = fast_.Touch(block);
  if (copy == nullptr) {
    counts_.missed_rows += count;
    counts_.loaded_rows += count;
  } else {
    counts_.hit_rows += count;
  }
  std::memcpy(out, (copy == nullptr ? block_rows : copy) + first * row_bytes_, count * row_bytes_);
  return copy == nullptr ? count : 0;
}

void RowTiers::CopyRuns(std::span<const Run> runs) {
  size_t bytes = 0;
  for (const Run& run : runs) bytes += run.bytes;
  const auto copy = [](const Run& run) { std::memcpy(run.to, run.from, run.bytes); };
  if (bytes < kMinParallelBytes) {
    std::for_each(runs.begin(), runs.end(), copy);
    return;
  }
  ParallelForOn(*kernels_, *executor_)(runs.size(), [&](size_t i) { copy(runs[i]); });
}

}  // namespace winnow
