#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/kv_layout.h"
#include "common/base/status.h"
#include "common/transport/transport.h"
#include "inference_rank/frame_writer.h"
#include "inference_rank/metrics.h"
#include "inference_rank/model/forward.h"
#include "inference_rank/sequence.h"

namespace winnow {

// The KV side of one decode iteration: opens a plan on every cache rank concerned, sends each layer's rows and queries,
// commits the deltas that come back, tells attention which slots to read, and collects the partial states that correct
// it where a sequence waits for verdicts.
//
// A failure of one link or sequence poisons only the rows concerned: they go through the rest of the step with sinks
// and recent rows only, their logits are discarded, and Sequence::failure is set. Reused from step to step (no
// allocation once warm). Engine thread.
class DecodeStep final : public DecodeKv {
 public:
  DecodeStep(Transport& transport, const KvLayout& layout, InferenceRankMetrics& metrics, const DataPlaneWaits& waits);

  // Starts a plan for these sequences, at most kMaxDecodeRows of them. Sends the StepPlan frames, one to each cache
  // rank that holds a shard of some of them.
  void Begin(uint64_t plan, std::span<Sequence* const> rows);
  std::span<const uint32_t> token_ids() const { return token_ids_; }
  std::span<const uint32_t> positions() const { return positions_; }
  // After the forward pass: per-sequence positions and statistics move on; the step no longer accepts frames.
  void Finish();

  // A Delta frame of a link (called by the engine's frame handler while the step waits). INVALID_ARGUMENT says what is
  // malformed: the link cannot be trusted any more.
  absl::Status OnDelta(const CacheLink& link, const ReceivedFrame& frame);

  // A Partial frame, likewise.
  absl::Status OnPartial(const CacheLink& link, const ReceivedFrame& frame);

  int Lookahead() const override { return lookahead_; }
  bool NeedsHidden(int layer) const override;
  bool SlotsComeFirst(int layer) const override { return layer >= first_ahead_layer_; }
  void PlacesOfRows(HeadRange heads, std::span<void*> places) const override;
  void Publish(const DecodeLayerOutput& output) override;
  void AwaitSlots(int layer, SlotLists& lists) override;
  bool WaitsForPartials() const override { return waits_for_partials_; }
  std::span<const PartialAttention> AwaitPartials(int layer) override;

 private:
  // What one link has of the plan: the rows of its frames are these.
  struct Member {
    int row;
    KvShard shard;
  };
  struct Group {
    CacheLink* link;
    std::vector<Member> members;
    bool needs_queries;
    bool needs_predictions;
    bool needs_hidden;
  };
  struct Row {
    Sequence* sequence;
    uint32_t dense_lists;  // those that attend everything, of all shards
    bool judged;           // waits for verdicts on its sparse lists
    bool poisoned;         // its result is discarded
  };

  Group& GroupOf(CacheLink* link);
  absl::Status PostPlan(const Group& group);
  absl::Status PostLayer(const Group& group, const DecodeLayerOutput& output);
  // The layer that residuals which enter `layer` are sent for.
  int HiddenTarget(int layer) const { return layer + hidden_lookahead_; }
  absl::Status CommitEntry(int row, int layer, const wire::DeltaEntry& entry, std::span<const std::byte> payload,
                           size_t* offset);
  const Group* FindGroup(const CacheLink& link) const;
  // The plan row that an entry of a link is about; INVALID_ARGUMENT when the link holds no such list of it.
  absl::StatusOr<int> RowOf(const Group& group, uint32_t plan_row, int layer, int kv_head) const;
  absl::Status TakeVerdict(int row, int layer, const wire::PartialEntry& entry, std::span<const float> state);
  void Poison(int row, const absl::Status& status);
  void Poison(const Group& group, const absl::Status& status);
  bool Waits(int row) const;
  bool Complete(int layer) const;
  bool Judged() const;
  template <typename Done, typename GiveUp>
  void WaitUntil(Span what, int layer, Done done, GiveUp give_up, std::atomic<uint64_t>& waited_us);
  void UseResidentOnly(int row, int layer);

  // Constant after construction.
  Transport& transport_;
  const KvLayout layout_;
  InferenceRankMetrics& metrics_;
  const DataPlaneWaits waits_;

  // The step under way.
  uint64_t plan_ = 0;
  bool active_ = false;
  int lookahead_ = 0;
  int hidden_lookahead_ = 0;   // of residuals that are sent
  int first_ahead_layer_ = 0;  // from it on, deltas come of what earlier layers or plans have sent
  uint64_t step_lookups_ = 0;
  uint64_t step_streamed_ = 0;
  std::vector<Row> rows_;
  std::vector<Group> groups_;  // num_groups_ in use
  size_t num_groups_ = 0;
  SectionGather sections_;  // of the frame under construction
  std::vector<uint32_t> token_ids_;
  std::vector<uint32_t> positions_;
  std::vector<uint16_t> missing_;  // [num_layers][num_rows] kv heads whose delta is awaited and has not come, of all
                                   // cache ranks

  // Verdicts of the layer that was published last; earlier layers have all of theirs.
  bool waits_for_partials_ = false;
  int judged_layer_ = -1;
  std::vector<uint8_t> unjudged_;           // [num_rows][num_kv_heads] 1: the verdict has not come
  std::vector<float> partial_states_;       // [num_rows][num_kv_heads]: o [group_size, head_dim], then lse [group_size]
  std::vector<PartialAttention> partials_;  // that have come
};

}  // namespace winnow
