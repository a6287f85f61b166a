#pragma once
#include <vector>

#include "cache_rank/metrics.h"
#include "cache_rank/step/epoch_fence.h"
#include "cache_rank/step/prompt_intake.h"
#include "cache_rank/step/selector.h"
#include "cache_rank/store/sequence_store.h"
#include "cache_rank/stream/device_peer_link.h"
#include "cache_rank/stream/inference_link.h"
#include "cache_rank/stream/streamer.h"
#include "transport/transport.h"

namespace winnow {

// What a link does from GPU to GPU, beside frames (DevicePeerLink): plans that run on it, sequences that ask for a
// batch row, and rows that come over it, which are stored in host memory as all rows are. Data-plane thread.
class PeerIntake {
 public:
  // `peer_links` may be null: then no link has a peer link.
  PeerIntake(const KvLayout& layout, DevicePeerLinks* peer_links, SequenceStore* store, EpochFence* fence,
             PromptIntake* prompts, Streamer* streamer, Selector* selector, Executor* executor,
             CacheRankMetrics* metrics)
      : layout_(layout),
        peer_links_(peer_links),
        store_(store),
        fence_(fence),
        prompts_(prompts),
        streamer_(streamer),
        selector_(selector),
        executor_(executor),
        metrics_(metrics) {}

  // Frames. INVALID_ARGUMENT and RESOURCE_EXHAUSTED: no correct peer sends them.
  absl::Status HandlePlan(InferenceLink& link, const ReceivedFrame& frame);
  absl::Status HandleBatchRow(InferenceLink& link, const ReceivedFrame& frame);
  absl::Status HandleStaged(InferenceLink& link, const ReceivedFrame& frame);

  // Goes on with the first sequence that waits for a batch row; false when there is none.
  bool RunBatchRowRequests(InferenceLink& link);
  // Goes on with the copy of a sequence that began with a cached prefix, so that it has caught up when a batch row is
  // asked for; false when there is none.
  bool CopyPrefix(InferenceLink& link);
  // Stores the oldest rows that were pushed to the GPU, once they are in host memory; `wait`: all of them.
  void TakeStaged(InferenceLink& link, bool wait);
  // All that have been pushed of this sequence.
  void TakeStagedOf(InferenceLink& link, uint64_t sequence_id) {
    if (link.HasStaged(sequence_id)) TakeStaged(link, /*wait=*/true);
  }
  // Stores the rows of plans from GPU to GPU that have ended; `wait`: of all plans.
  void TakeRows(InferenceLink& link, bool wait);
  // Rows of a prompt that came by frame: the GPU gets a copy of them, too.
  void OnPromptRows(InferenceLink& link, const CachedSequence& sequence, int layer, uint32_t first, uint32_t count,
                    const std::byte* rows);

 private:
  const KvLayout layout_;
  DevicePeerLinks* const peer_links_;
  SequenceStore* const store_;
  EpochFence* const fence_;
  PromptIntake* const prompts_;
  Streamer* const streamer_;
  Selector* const selector_;
  Executor* const executor_;
  CacheRankMetrics* const metrics_;
  // Of the plan at hand: its rows, and those of them that have a batch row.
  std::vector<wire::PlanRow> plan_rows_;
  std::vector<DevicePeerLink::Row> rows_;
};

}  // namespace winnow
