#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cache_rank/store/fast_tier.h"
#include "common/base/kv_layout.h"
#include "common/base/status.h"
#include "kernels/kernel_table.h"

namespace winnow {

class BlockList;

// Rows of a cache rank between its two tiers. Both directions have the shape that GPUs with pinned host memory want
// (SparseServe's FlashD2H and FlashH2D); here both tiers are host memory.
//
// Writing: the rows of a step go to staging in the fast tier in one contiguous copy, where the index is made of them,
// and are scattered to their blocks in the large tier by all threads later, when staging is full, somebody reads them,
// or there is nothing else to do. Reading: one gather of many rows, from copies in the fast tier where there are any.
// Blocks of which a gather wants at least `admit_rows` rows that are not there are loaded whole and stay as copies, so
// that at most kBlockTokens / admit_rows times as much is loaded as was asked for; of other blocks the rows alone pass.
//
// What is read never depends on what is where. Data-plane thread, never its workers.
class RowTiers {
 public:
  struct Options {
    FastTier::Options fast = {};  // memory_bytes: staging included
    uint32_t admit_rows = kBlockTokens / 2;
    size_t max_staging_bytes = size_t{1} << 20;  // or an eighth of the memory, where that is less
  };
  struct Counts {
    uint64_t hit_rows = 0;      // rows read from copies
    uint64_t missed_rows = 0;   // rows read that had no copy
    uint64_t loaded_rows = 0;   // rows read from the large tier for them: whole blocks where these are admitted
    uint64_t gathers = 0;       // reads in which some row missed
    double gather_seconds = 0;  // time of those
    uint64_t scattered_rows = 0;
    uint64_t scatters = 0;
    double scatter_seconds = 0;
    uint64_t damaged_copies = 0;  // given up: rows in the large tier were right, or their blocks are damaged, too
  };

  // INVALID_ARGUMENT with the arithmetic when the memory is less than staging and one block per kv head.
  static absl::Status CheckMemory(const Options& options, const KvLayout& layout);
  // After CheckMemory, whose error it returns.
  static absl::StatusOr<std::unique_ptr<RowTiers>> Create(const Options& options, const KvLayout& layout,
                                                          const KernelTable* kernels, Executor* executor);

  FastTier& fast() { return fast_; }
  const FastTier& fast() const { return fast_; }
  uint32_t admit_rows() const { return admit_rows_; }
  size_t staging_bytes() const { return staging_.size(); }
  const Counts& counts() const { return counts_; }

  // Rows of one Append: where they can be read until they are scattered, and Scatter for each run of them. What does
  // not fit staging at all stays where it is, and is scattered by EndWrite. So is the rest of a write in whose course
  // there was a flush: its staging is free for the next one, and who compares flushes() takes all of it for settled.
  const std::byte* Stage(const std::byte* rows, size_t bytes);
  void Scatter(const std::byte* from, std::byte* to, size_t bytes) { runs_.push_back({from, to, bytes}); }
  void EndWrite(const std::byte* staged);
  // Scatters all that is staged. True when there was something.
  bool Flush();
  // Number of flushes so far: what was staged at an earlier one is in its block.
  uint64_t flushes() const { return flushes_; }

  // out[i] = row positions[i] (ascending) of a list whose first `complete_blocks` blocks will not change. Returns the
  // rows read from the large tier, as does CopyRun.
  uint32_t Gather(const BlockList& rows, size_t complete_blocks, std::span<const uint32_t> positions, std::byte* out);
  // Rows [first, first + count) of one block; loads nothing. `block_rows` is its place in the large tier.
  uint32_t CopyRun(uint32_t block, const std::byte* block_rows, uint32_t first, uint32_t count, std::byte* out);
  // Gives up the copy of a block, of which a row was found damaged, so that the large tier is read again. False when
  // there is none.
  bool GiveUpCopy(uint32_t block);

 private:
  struct Run {
    const std::byte* from;
    std::byte* to;
    size_t bytes;
  };
  RowTiers(const Options& options, size_t staging_bytes, const KvLayout& layout, const KernelTable* kernels,
           Executor* executor);
  // By all threads where that pays.
  void CopyRuns(std::span<const Run> runs);

  const uint32_t admit_rows_;
  const size_t row_bytes_;
  const KernelTable* const kernels_;
  Executor* const executor_;
  FastTier fast_;
  std::vector<std::byte> staging_;
  size_t staged_bytes_ = 0;
  std::vector<Run> runs_;
  uint64_t flushes_ = 0;
  uint64_t flushes_before_write_ = 0;  // of the last write
  Counts counts_;
  // Of the gather under way.
  std::vector<const void*> blocks_;
  std::vector<uint32_t> pinned_;
  std::vector<Run> loads_;
};

}  // namespace winnow
