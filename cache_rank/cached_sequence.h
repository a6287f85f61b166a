#pragma once
#include <chrono>
#include <cstdint>
#include <vector>

#include "cache_rank/layer_selection.h"
#include "cache_rank/sequence_kv.h"
#include "common/selection/selection_spec.h"
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
struct PlanSeat {
  uint64_t plan = 0;
  uint32_t row = 0;
  uint32_t position = kNoPosition;  // kNoPosition: in no plan
  bool sparse = false;
};

// Everything that a cache rank keeps for one sequence. Owned by the store, touched by the data-plane thread (and by
// workers that score one of its heads while that thread waits for them).
struct CachedSequence {
  CachedSequence(uint64_t id, const SelectionSpec& spec, SequenceKv kv, const KvLayout& layout);

  const uint64_t id;
  const SelectionSpec spec;
  SequenceKv kv;
  uint32_t prompt_tokens = 0;
  v1::SamplingParams sampling;
  SequenceJournal journal;

  // Who may send: the frames' attach_epoch and channel must be these. Channel 0: detached.
  uint32_t attach_epoch = 1;
  uint32_t channel = 0;
  std::chrono::steady_clock::time_point detached_at;

  std::vector<LayerSelection> layers;
  PlanSeat seat;
  uint32_t pool_slots = 0;  // of the last plan row
  uint32_t identity_rows =
      0;  // pool rows that both sides know without a frame, from the last row that attended everything

  bool attached() const { return channel != 0; }
  // Bytes of keys that its selections and verdicts have read, over all layers and kv heads.
  uint64_t ScoredKeyBytes() const;
  // Where a new inference rank may restart, at most at max_restart: the rows below are there in every layer, and so are
  // the queries that the predictor needs. 0 when a part of the prompt is missing.
  uint32_t RestartPosition(uint32_t max_restart) const;
  // Drops what lies at and above `position`, and all state that depends on the inference rank.
  absl::Status Restart(uint32_t position);
};

}  // namespace winnow
