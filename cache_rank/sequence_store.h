#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <unordered_map>

#include "cache_rank/cached_sequence.h"
#include "cache_rank/kv_block_pool.h"
#include "common/base/kv_layout.h"
#include "common/base/status.h"
#include "kernels/kernel_table.h"

namespace winnow {

// The sequences of a cache rank. A sequence is active (attached to a channel), detached (kept for the TTL, attachable)
// or gone. Each attach raises attach_epoch, so that frames of earlier holders are recognised. One thread.
class SequenceStore {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // What an inference rank asks for; sizes in positions.
  struct OpenOptions {
    uint64_t sequence_id = 0;
    SelectionSpec spec = {};
    uint32_t max_positions = 0;
    uint32_t prompt_tokens = 0;
    v1::SamplingParams sampling = {};
  };

  SequenceStore(KvBlockPool* pool, const KernelTable* kernels, const KvLayout& layout,
                std::chrono::milliseconds detach_ttl)
      : pool_(pool), kernels_(kernels), layout_(layout), detach_ttl_(detach_ttl) {}

  // An empty sequence attached to `channel`. ALREADY_EXISTS; RESOURCE_EXHAUSTED when the blocks do not fit.
  absl::StatusOr<CachedSequence*> Open(uint32_t channel, const OpenOptions& options);
  // Takes a sequence over for `channel`: raises its epoch and restarts it at RestartPosition(max_restart). NOT_FOUND.
  absl::StatusOr<CachedSequence*> Attach(uint32_t channel, uint64_t sequence_id, uint32_t max_restart);
  // A new sequence that shares the full blocks of `source_id`, of any state, and continues at its watermark.
  absl::StatusOr<CachedSequence*> Fork(uint32_t channel, uint64_t source_id, uint64_t sequence_id,
                                       uint32_t max_positions);
  // Idempotent. ABORTED when `attach_epoch` is not the current one.
  absl::Status Release(uint64_t sequence_id, uint32_t attach_epoch);

  // All sequences of the channel become detached; returns how many.
  size_t DetachChannel(uint32_t channel, Time now);
  void Detach(CachedSequence& sequence, Time now);
  // Frees sequences that were detached for longer than the TTL; returns how many.
  size_t Reclaim(Time now);

  CachedSequence* Find(uint64_t sequence_id) const;
  // The sequence if it is attached to `channel` with this epoch, else null.
  CachedSequence* FindAttached(uint64_t sequence_id, uint32_t attach_epoch, uint32_t channel) const;

  size_t active() const { return active_; }
  size_t detached() const { return sequences_.size() - active_; }

 private:
  KvBlockPool* const pool_;
  const KernelTable* const kernels_;
  const KvLayout layout_;
  const std::chrono::milliseconds detach_ttl_;
  std::unordered_map<uint64_t, std::unique_ptr<CachedSequence>> sequences_;
  size_t active_ = 0;
};

}  // namespace winnow
