#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "common/base/kv_layout.h"
#include "common/base/status.h"
#include "inference_rank/metrics.h"
#include "inference_rank/sequence/sequence.h"
#include "inference_rank/step/entry_views.h"
#include "inference_rank/step/frame_writer.h"
#include "inference_rank/step/layer_verifications.h"
#include "inference_rank/step/link_plan.h"
#include "inference_rank/step/step_rows_sender.h"
#include "model/forward.h"
#include "transport/transport.h"

namespace winnow {

// The KV side of one decode iteration: opens a plan on every cache rank concerned, sends each layer's rows and queries,
// commits the deltas that come back, tells attention which slots to read, and collects the partial states that correct
// it where a sequence waits for verifications. What attends to everything, and leaves no queries behind, has no part in
// the plan: its K and V go out together after the last layer, so that a cache rank on the same cores is woken once in a
// step and not in every layer.
//
// A failure of one link or sequence poisons only the rows concerned: they go through the rest of the step with sinks
// and recent rows only, their logits are discarded, and Sequence::failure is set. What later layers compute of such a
// row is not to be stored, as a rank that takes the sequence over goes on behind whatever is: the cache ranks are told
// before it is sent. Reused from step to step (no allocation once warm). Engine thread.
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
  // malformed: the link cannot be trusted any more. The frame is held until a GPU has fetched its rows, and until its
  // payload has been checked, which is before Finish returns: tokens come of good rows only.
  absl::Status OnDelta(const CacheLink& link, ReceivedFrame frame);

  // A Partial frame, likewise.
  absl::Status OnPartial(const CacheLink& link, const ReceivedFrame& frame);

  int Lookahead() const override { return lookahead_; }
  bool WorkMeanwhile() override { return CheckFrame(); }
  bool NeedsHidden(int layer) const override;
  bool SlotsComeFirst(int layer) const override { return layer >= first_ahead_layer_; }
  void PlacesOfRows(HeadRange heads, std::span<void*> places) const override;
  void Publish(const DecodeLayerOutput& output) override;
  bool PollSlots(int layer) override;
  void AwaitSlots(int layer, SlotLists& lists) override;
  bool WaitsForPartials() const override { return waits_for_partials_; }
  std::span<const PartialAttention> AwaitPartials(int layer) override;
  float* State(int row) const override { return rows_[row].sequence->recurrent_state.data(); }

 private:
  bool SendsAlone(const FrameStepRow& row, bool selects, bool needs_delta) const;
  void KeepRows(const DecodeLayerOutput& output);
  void SendKeptRows();

  // What the link has of the plan that a frame is about; null when that is of another step, INVALID_ARGUMENT when the
  // link is not concerned.
  absl::StatusOr<const LinkPlan*> PartOf(const CacheLink& link, const wire::FrameHeader& header);
  absl::Status Commit(int row, int layer, const DeltaEntryView& delta, const std::shared_ptr<const void>& keep);
  absl::Status TakeVerification(int row, int layer, const PartialEntryView& verification);
  void AwaitVerificationsOn(int layer);
  // The layer that residuals which enter `layer` are sent for.
  int HiddenTarget(int layer) const { return layer + hidden_lookahead_; }

  void Poison(int row, const absl::Status& status);
  void Poison(const LinkPlan& part, const absl::Status& status);
  // Of the rows that have failed, to a cache rank that has not been told yet.
  absl::Status WithdrawFailedRows(LinkPlan& part);
  bool Waits(int row) const;
  bool Complete(int layer) const;
  bool Verified() const;
  // Rows whose link has ended wait no longer; the other links are to be heard of in time.
  void NoteAwaited();
  // Checks the payload of the oldest frame whose check was left to this; false when there is none.
  bool CheckFrame();
  // Lets go of frames whose rows have been fetched: they hold the window that others wait for. True when none is left.
  bool ReleaseFrames();
  template <typename Done, typename GiveUp>
  void WaitUntil(Span what, int layer, Done done, GiveUp give_up, std::atomic<uint64_t>& waited_us);
  void UseResidentOnly(int row, int layer);

  // Constant after construction.
  Transport& transport_;
  const KvLayout layout_;
  InferenceRankMetrics& metrics_;
  const DataPlaneWaits waits_;

  PlanSender sender_;
  StepRowsSender rows_sender_;
  // The step under way.
  uint64_t plan_ = 0;
  bool active_ = false;
  int lookahead_ = 0;
  int hidden_lookahead_ = 0;   // of residuals that are sent
  int first_ahead_layer_ = 0;  // from it on, deltas come of what earlier layers or plans have sent
  struct UncheckedFrame {
    CacheLink* link;
    std::shared_ptr<const ReceivedFrame> frame;
  };
  std::deque<UncheckedFrame> unchecked_;
  uint64_t step_lookups_ = 0;
  uint64_t step_streamed_ = 0;
  std::vector<FrameStepRow> rows_;
  LinkPlans plans_;
  std::vector<std::byte> kept_rows_;  // [rows][num_layers][num_kv_heads] K and V of those that are sent alone
  std::vector<StepRowsSender::Row> sent_alone_;
  std::vector<uint32_t> token_ids_;
  std::vector<uint32_t> positions_;
  std::vector<uint16_t> missing_;  // [num_layers][num_rows] kv heads whose delta is awaited and has not come, of all
                                   // cache ranks

  bool waits_for_partials_ = false;
  LayerVerifications verifications_;  // of the layer that was published last; earlier layers have all of theirs
};

}  // namespace winnow
