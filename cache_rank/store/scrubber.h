#pragma once
#include <chrono>
#include <cstdint>
#include <vector>

#include "cache_rank/store/kv_block_pool.h"
#include "cache_rank/store/sequence_store.h"

namespace winnow {

// Reads all that is stored, slowly and over and over, so that what nobody asks for is found damaged before somebody
// does. One pass goes over the sequences: rows are compared with their checksums, in either tier, and the index with
// what the rows give, which is put in its place where it differs; then over the blocks of prompts that no sequence
// holds. Blocks that sequences share are read once.
//
// Damage is noted of the sequences (SequenceKv::damage) and kept from prompts to come (SequenceStore::CondemnBlock).
// Data-plane thread, while nobody reads.
class Scrubber {
 public:
  struct Counts {
    uint64_t bytes = 0;
    uint64_t passes = 0;
    uint64_t damaged_rows = 0;   // found here; one per block
    uint64_t mended_blocks = 0;  // of index
  };

  // bytes_per_s 0: nothing is read.
  Scrubber(uint64_t bytes_per_s, KvBlockPool* pool, SequenceStore* store)
      : bytes_per_s_(bytes_per_s), pool_(pool), store_(store) {}

  // Allows what the rate gives for the time since the last call, of which what was not read soon is forgotten.
  void Tick(std::chrono::steady_clock::time_point now);
  // Reads at most kSliceBytes and a block, if allowed, looks at empty blocks included. False when it did nothing.
  bool RunOnce();

  const Counts& counts() const { return counts_; }

 private:
  static constexpr uint64_t kSliceBytes = 32 << 10;

  // Reads one block, returns its bytes; 0 at the end of the pass, and where the slice ends among empty blocks.
  uint64_t Step();
  uint64_t StepOfSequence(CachedSequence& sequence);
  // The rows of one block of the pool, and of its copy; false, and the block is condemned, when one is damaged.
  bool CheckBlock(uint32_t block);
  void BeginPass();

  const uint64_t bytes_per_s_;
  KvBlockPool* const pool_;
  SequenceStore* const store_;
  Counts counts_;
  std::chrono::steady_clock::time_point last_tick_;
  bool ticked_ = false;
  int64_t allowed_bytes_ = 0;
  // Of the pass: the sequences that are left, where the last of them is, and which blocks of the pool were read.
  std::vector<uint64_t> sequences_;
  size_t list_ = 0, block_of_list_ = 0;
  std::vector<bool> read_;
  uint32_t next_block_ = 0;
  uint64_t looks_ = 0;  // of the slice, at blocks that hold nothing
  bool found_some_ = false;
  std::vector<std::byte> scratch_;
};

}  // namespace winnow
