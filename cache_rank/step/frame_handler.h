#pragma once
#include <cstdint>
#include <vector>

#include "cache_rank/metrics.h"
#include "cache_rank/step/epoch_fence.h"
#include "cache_rank/step/layer_sections.h"
#include "cache_rank/step/peer_intake.h"
#include "cache_rank/step/prefetcher.h"
#include "cache_rank/step/prefix_attender.h"
#include "cache_rank/step/prompt_intake.h"
#include "cache_rank/step/query_intake.h"
#include "cache_rank/step/selector.h"
#include "cache_rank/step/step_rows_intake.h"
#include "cache_rank/store/sequence_store.h"
#include "cache_rank/stream/inference_link.h"
#include "cache_rank/stream/streamer.h"
#include "transport/transport.h"

namespace winnow {

// What an arriving frame does: opens plans, appends their rows, keeps queries (QueryIntake), rows of prompts
// (PromptIntake) and of steps that need no plan (StepRowsIntake), and tells the selector and the PrefixAttender; frames
// of peer links go to PeerIntake. Cheap by design: nothing is scored here. A frame that no correct peer sends fails its
// link; one of a sequence that the peer no longer holds is answered kFenced (EpochFence), and the other rows of its
// plan go on. Data-plane thread.
class FrameHandler {
 public:
  // `hidden_size` of the residuals that may come; 0 where this rank projects none. `peer_links` may be null.
  FrameHandler(const KvLayout& layout, int hidden_size, const RopeShape& rope, const KernelTable* kernels,
               SequenceStore* store, Streamer* streamer, Selector* selector, Prefetcher* prefetcher,
               PrefixAttender* attender, Executor* executor, CacheRankMetrics* metrics,
               DevicePeerLinks* peer_links = nullptr)
      : layout_(layout),
        store_(store),
        streamer_(streamer),
        selector_(selector),
        attender_(attender),
        executor_(executor),
        metrics_(metrics),
        fence_(store, streamer, metrics),
        queries_(layout, hidden_size, rope, kernels, selector, prefetcher),
        prompts_(store, streamer, selector, executor, metrics),
        peer_links_(layout, peer_links, store, &fence_, &prompts_, streamer, selector, executor, metrics),
        step_rows_(layout, &fence_, &peer_links_, streamer, selector, executor, metrics),
        sections_(layout, hidden_size) {}
  FrameHandler(const FrameHandler&) = delete;
  FrameHandler& operator=(const FrameHandler&) = delete;

  void Handle(InferenceLink& link, const ReceivedFrame& frame);
  PeerIntake& peer_links() { return peer_links_; }

 private:
  absl::Status HandleStepPlan(InferenceLink& link, const ReceivedFrame& frame);
  absl::Status HandleLayer(InferenceLink& link, const ReceivedFrame& frame);
  // The peer has given up on a row of a plan: what comes of it from now on must not be stored.
  void HandleTransferFailed(const InferenceLink& link, const wire::FrameHeader& header);
  absl::Status HandleAppendRange(InferenceLink& link, const ReceivedFrame& frame);
  absl::Status HandlePromptQueries(InferenceLink& link, const ReceivedFrame& frame);
  absl::Status HandlePrefixQueries(InferenceLink& link, const ReceivedFrame& frame);
  absl::Status HandleState(InferenceLink& link, const ReceivedFrame& frame);

  // Notes the sequence's row in the plan; false when it was refused.
  bool TakePlanRow(CachedSequence& sequence, uint64_t plan, uint32_t row_index, const wire::PlanRow& row);
  void AppendRow(InferenceLink& link, CachedSequence& sequence, int layer, uint32_t position, const std::byte* rows);

  const KvLayout layout_;
  const SequenceStore* const store_;
  Streamer* const streamer_;
  Selector* const selector_;
  PrefixAttender* const attender_;
  Executor* const executor_;
  CacheRankMetrics* const metrics_;

  EpochFence fence_;
  QueryIntake queries_;
  PromptIntake prompts_;
  PeerIntake peer_links_;
  StepRowsIntake step_rows_;
  LayerSections sections_;                // of the Layer frame at hand
  std::vector<wire::PlanRow> plan_rows_;  // of the StepPlan frame at hand
};

}  // namespace winnow
