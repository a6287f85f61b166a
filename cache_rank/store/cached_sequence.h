#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cache_rank/select/predictor/from_past.h"
#include "cache_rank/store/layer_selection.h"
#include "cache_rank/store/prefix_cache.h"
#include "cache_rank/store/sequence_kv.h"
#include "cache_rank/store/state_snapshots.h"
#include "common/base/kv_shard.h"
#include "common/selection/attended_set.h"
#include "winnow/v1/sampling.pb.h"

namespace winnow {

// Token ids of the decode steps' inputs, by position: with the sampling parameters it lets any rank take the sequence
// over.
struct SequenceJournal {
  uint32_t first_position = 0;
  std::vector<uint32_t> token_ids;

  // A position that does not continue the journal drops what it repeats, or everything when there would be a gap.
  void Record(uint32_t position, uint32_t token_id);
  void Truncate(uint32_t position);
};

// The plan row that a sequence is in: where its deltas go.
struct PlannedRow {
  uint64_t plan = 0;
  uint32_t row = 0;
  uint32_t position = kNoPosition;  // kNoPosition: in no plan
  bool sparse = false;              // rows are chosen for some of its lists
  bool selects = false;             // and they are chosen anew
  bool tells_positions = false;     // its deltas name the positions of their rows
};

// Everything that a cache rank keeps for one sequence. Owned by the store, touched by the data-plane thread (and by
// workers that score one of its heads while that thread waits for them).
struct CachedSequence {
  // `layout` and `spec` of the shard.
  CachedSequence(uint64_t id, const SelectionSpec& spec, SequenceKv kv, const KvLayout& layout, const KvShard& shard,
                 uint32_t prompt_tokens);

  const uint64_t id;
  // What of the sequence this cache rank holds. Here layers and heads count from 0; in frames they are the model's.
  const KvShard shard;
  const KvLayout layout;
  const SelectionSpec spec;
  const SelectionSpec prefetch_spec;  // how rows to be moved ahead are predicted, where `spec` asks for it
  SequenceKv kv;
  const uint32_t prompt_tokens;
  v1::SamplingParams sampling;
  SequenceJournal journal;
  StateSnapshots states;  // of a hybrid model's sequence, which restarts where there is one

  // Of the prompt's whole blocks, until they are in the prefix cache; then the lease keeps them there.
  std::vector<uint32_t> prefix_token_ids;
  std::string prefix_salt;
  PrefixCache::Lease prefix;
  // What it was opened with, for a replica to be opened with: all of the prompt (null where nothing is shared), and the
  // salt as the inference rank said it. Forks share the prompt with their source.
  std::shared_ptr<const std::vector<uint32_t>> prompt_token_ids;
  std::string opened_with_salt;
  uint32_t cached_tokens = 0;  // of its prompt, that came from the prefix cache when it was opened

  // Who may send: the frames' attach_epoch and channel must be these. Channel 0: detached.
  uint32_t attach_epoch = 1;
  uint64_t attach_call = 0;  // of the channel: which call has attached it; 0: one that has no number
  uint32_t channel = 0;
  std::chrono::steady_clock::time_point detached_at;

  // A copy of a sequence that another cache rank holds, never attached to here; and the stream that feeds it, 0 when
  // that has ended.
  bool is_replica = false;
  uint64_t feed = 0;
  // The lowest position that it was restarted at since whoever feeds its replica has looked.
  uint32_t rewound_to = UINT32_MAX;
  // Rows of streaming lists below, beside the sinks, were not there to be copied.
  uint32_t first_copied = 0;

  std::vector<LayerSelection> layers;
  PlannedRow planned;
  uint32_t attach_position = 0;      // the first position decoded in this attachment
  std::vector<uint32_t> pool_slots;  // [list]
  uint32_t total_pool_slots = 0;

  bool attached() const { return channel != 0; }
  size_t num_kv_heads() const { return layers.front().heads.size(); }
  size_t num_lists() const { return pool_slots.size(); }
  size_t list(int layer, int head) const { return layer * num_kv_heads() + head; }
  int layer_of_model(int layer) const { return shard.first_layer + layer; }
  int head_of_model(int head) const { return shard.first_kv_head + head; }
  // As the free function of predictor/from_past.h.
  bool SelectsWithOwnQuery(int layer) const { return winnow::SelectsWithOwnQuery(spec, layer_of_model(layer)); }
  // As the free functions of attended_set.h, for this sequence and attachment.
  uint32_t Anchor(uint32_t position) const { return AnchorPosition(spec, position, prompt_tokens); }
  bool IsSparse(size_t list, uint32_t position) const { return winnow::IsSparse(spec, list, position, prompt_tokens); }
  bool NeedsDelta(size_t list, uint32_t position) const {
    return winnow::NeedsDelta(spec, list, position, prompt_tokens, attach_position);
  }
  // True when one of the layer's lists does.
  bool LayerIsSparse(int layer, uint32_t position) const {
    return AnyList(list(layer, 0), num_kv_heads(), [&](size_t list) { return IsSparse(list, position); });
  }
  bool LayerNeedsSelection(int layer, uint32_t position) const {
    return AnyList(list(layer, 0), num_kv_heads(),
                   [&](size_t list) { return NeedsSelection(spec, list, position, prompt_tokens); });
  }
  bool LayerNeedsDelta(int layer, uint32_t position) const {
    return AnyList(list(layer, 0), num_kv_heads(), [&](size_t list) { return NeedsDelta(list, position); });
  }
  // Bytes of keys that its selections and verifications have read, over all layers and kv heads.
  uint64_t ScoredKeyBytes() const;
  // Rows of the blocks that its last selections read here, over all lists.
  uint64_t WorkingSetRows() const;
  // Where a new inference rank may restart, at most at max_restart: the rows below are there in every layer, and so are
  // the queries that the predictor needs, and the selection of its anchor. 0, which means from a new prefill, where
  // that would be within the prompt, and where the queries of so early a position are gone.
  uint32_t RestartPosition(uint32_t max_restart) const;
  // Where a new inference rank may go on with a prompt that it cannot restart behind, at most at max_restart: whole
  // blocks of every layer, and never what the first selections look back on (PrefixLimit), as with a cached prefix. 0:
  // at its beginning.
  uint32_t PromptRestart(uint32_t max_restart) const;
  // Where a new inference rank may go on that needs a state of so many bytes, at most at max_restart: at a position of
  // which it is there, if rows allow that, too; 0: with the prompt. `allows_prompt`: within the prompt as well. What is
  // damaged of states is forgotten.
  uint32_t StateRestart(uint32_t max_restart, uint64_t state_bytes, bool allows_prompt);
  // True when the selections from `position` on can be predicted from the queries of the positions before it.
  bool HoldsPastQueries(uint32_t position) const;
  // Drops what lies at and above `position`, and all state that depends on the inference rank. The next attachment
  // begins there, or after a new prefill.
  absl::Status Restart(uint32_t position);
};

// Most positions of a prompt that need not be computed by the rank that ends it: its last max(window + 1,
// recent_tokens) always are, for the queries of the first selections, and so that something is left to compute.
uint32_t PrefixLimit(const SelectionSpec& spec, uint32_t prompt_tokens);

}  // namespace winnow
