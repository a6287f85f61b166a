#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "cache_rank/store/cached_sequence.h"
#include "cache_rank/store/kv_block_pool.h"
#include "cache_rank/store/prefix_cache.h"
#include "common/base/kv_layout.h"
#include "common/base/kv_shard.h"
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
    // All of the prompt, to share its blocks with prompts that begin alike; empty: nothing is shared.
    std::vector<uint32_t> prompt_token_ids = {};
    std::string prefix_salt = {};  // what its rows depend on beside the tokens, and who may share them
    bool pulls_prefix = false;     // its cached rows are sent when they are asked for
    KvShard shard = {};            // num_layers 0: all of it. `spec` is that of the shard
    uint32_t max_cached_tokens = UINT32_MAX;
    uint64_t state_bytes = 0;  // what it keeps beside rows (StateSnapshots)
  };

  SequenceStore(KvBlockPool* pool, const KernelTable* kernels, const KvLayout& layout,
                std::chrono::milliseconds detach_ttl, size_t max_idle_prefix_blocks = 0);
  ~SequenceStore();

  // INVALID_ARGUMENT for a sequence of no positions, or of a longer prompt than it has room for.
  static absl::Status CheckPositions(const OpenOptions& options);

  // A sequence attached to `channel`, that begins with the cached part of its prompt: whole blocks below its watermark,
  // and never what its first selections look back on (PrefixLimit). ALREADY_EXISTS; RESOURCE_EXHAUSTED when the blocks
  // do not fit; NOT_FOUND when it was released before it came: a call may be overtaken by the word that its caller does
  // not wait for it any more, and what it opened then would be nobody's.
  absl::StatusOr<CachedSequence*> Open(uint32_t channel, const OpenOptions& options);
  // The same for a replica, which is attached to nobody and stays while `feed` lasts.
  absl::StatusOr<CachedSequence*> OpenReplica(uint64_t feed, const OpenOptions& options);
  // Replicas of that feed are detached: kept for the TTL. Or one of them, if it is there.
  void EndFeed(uint64_t feed, Time now);
  void DetachReplica(uint64_t sequence_id, Time now);
  // The whole blocks of the prompt, which is complete, stay for prompts that begin alike.
  void KeepPrefix(CachedSequence& sequence);
  // Takes a sequence over for `channel`: raises its epoch and restarts it at RestartPosition(max_restart). A replica is
  // the sequence from then on. NOT_FOUND. Calls overtake each other: of one channel the one with the greatest number
  // has the sequence, and those before it are ABORTED, as is one that was undone before it came. A call with number 0
  // is never late. Whoever says what its rows depend on (OpenOptions::prefix_salt) can go on within the prompt, at
  // PromptRestart(max_restart); NOT_FOUND when that is to be computed, and differs from what the sequence was opened
  // with: rows of two kinds would become one prompt's, and then others'. Whoever needs a state of so many bytes goes on
  // where there is one (CachedSequence::StateRestart).
  absl::StatusOr<CachedSequence*> Attach(uint32_t channel, uint64_t sequence_id, uint32_t max_restart,
                                         uint64_t call = 0, std::optional<std::string_view> prefix_salt = std::nullopt,
                                         uint64_t state_bytes = 0);
  // The caller does not know what became of that call: a sequence that it has is detached, and if it comes later it is
  // refused.
  void UndoAttach(uint32_t channel, uint64_t sequence_id, uint64_t call, Time now);
  // A new sequence that shares the full blocks of `source_id`, of any state, and continues at its watermark.
  // FAILED_PRECONDITION while layers of the source differ in their rows.
  absl::StatusOr<CachedSequence*> Fork(uint32_t channel, uint64_t source_id, uint64_t sequence_id,
                                       uint32_t max_positions);
  // Idempotent; a sequence that is not there will not be opened either. ABORTED when `attach_epoch` is neither the
  // current one nor kAnyEpoch.
  static constexpr uint32_t kAnyEpoch = 0;
  absl::Status Release(uint64_t sequence_id, uint32_t attach_epoch);
  // The same, and the sequence is kept for the TTL.
  absl::Status Detach(uint64_t sequence_id, uint32_t attach_epoch, Time now);

  // All sequences of the channel become detached; returns how many.
  size_t DetachChannel(uint32_t channel, Time now);
  void Detach(CachedSequence& sequence, Time now);
  // Frees sequences that were detached for longer than the TTL; returns how many.
  size_t Reclaim(Time now);

  // That row of a block is damaged: it is noted of all sequences that hold the block, and no prompt is given it.
  void CondemnBlock(uint32_t block_number, uint32_t row);
  // In any order.
  std::vector<uint64_t> sequence_ids() const;

  CachedSequence* Find(uint64_t sequence_id) const;
  // The sequence if it is attached to `channel` with this epoch, else null.
  CachedSequence* FindAttached(uint64_t sequence_id, uint32_t attach_epoch, uint32_t channel) const;

  const RowTiers* tiers() const { return pool_->tiers(); }  // null: one tier
  const PrefixCache& prefixes() const { return prefixes_; }
  size_t active() const { return active_; }
  size_t CountAttached(uint32_t channel) const;
  // Neither attached nor fed.
  size_t detached() const { return sequences_.size() - active_ - replicas(); }
  size_t replicas() const;
  // Sequences of which others hold parts, too.
  size_t CountSharded() const;

 private:
  KvBlockPool* const pool_;
  const KernelTable* const kernels_;
  const KvLayout layout_;  // of the model
  const std::chrono::milliseconds detach_ttl_;
  // A sequence that is not in the table yet.
  absl::StatusOr<std::unique_ptr<CachedSequence>> Make(const OpenOptions& options);
  // The sequence at that epoch, or null where there is none. ABORTED.
  absl::StatusOr<CachedSequence*> FindAtEpoch(uint64_t sequence_id, uint32_t attach_epoch) const;

  PrefixCache prefixes_;
  std::unordered_map<uint64_t, std::unique_ptr<CachedSequence>> sequences_;
  std::unordered_set<uint64_t> released_early_;           // that were not there; bounded
  std::set<std::pair<uint32_t, uint64_t>> undone_calls_;  // Attach calls that may come yet, by channel; bounded
  size_t active_ = 0;
};

}  // namespace winnow
