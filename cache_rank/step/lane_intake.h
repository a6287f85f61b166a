#pragma once
#include <vector>

#include "cache_rank/metrics.h"
#include "cache_rank/step/epoch_fence.h"
#include "cache_rank/step/prompt_intake.h"
#include "cache_rank/step/selector.h"
#include "cache_rank/store/sequence_store.h"
#include "cache_rank/stream/device_lane.h"
#include "cache_rank/stream/peer_link.h"
#include "cache_rank/stream/streamer.h"
#include "transport/transport.h"

namespace winnow {

// What a link with a lane does beside frames (DeviceLane): plans that run on it, sequences that ask for a seat of it,
// and rows that come over it, which are stored in host memory as all rows are. Data-plane thread.
class LaneIntake {
 public:
  // `lanes` may be null: then no link has a lane.
  LaneIntake(const KvLayout& layout, DeviceLanes* lanes, SequenceStore* store, EpochFence* fence, PromptIntake* prompts,
             Streamer* streamer, Selector* selector, Executor* executor, CacheRankMetrics* metrics)
      : layout_(layout),
        lanes_(lanes),
        store_(store),
        fence_(fence),
        prompts_(prompts),
        streamer_(streamer),
        selector_(selector),
        executor_(executor),
        metrics_(metrics) {}

  // Frames. INVALID_ARGUMENT and RESOURCE_EXHAUSTED: no correct peer sends them.
  absl::Status HandlePlan(PeerLink& link, const ReceivedFrame& frame);
  absl::Status HandleSeat(PeerLink& link, const ReceivedFrame& frame);
  absl::Status HandleLanded(PeerLink& link, const ReceivedFrame& frame);

  // Goes on with the first sequence that waits for a seat; false when there is none.
  bool RunSeats(PeerLink& link);
  // Goes on with the mirror of a sequence that began with a cached prefix, so that it has caught up when a seat is
  // asked for; false when there is none.
  bool MirrorPrefix(PeerLink& link);
  // Stores the oldest rows that were pushed to the link's lane, once they are in host memory; `wait`: all of them.
  void TakeLanded(PeerLink& link, bool wait);
  // All that have been pushed of this sequence.
  void TakeLandedOf(PeerLink& link, uint64_t sequence_id) {
    if (link.HasLanded(sequence_id)) TakeLanded(link, /*wait=*/true);
  }
  // Stores the rows of plans on the link's lane that have ended; `wait`: of all plans.
  void TakeRows(PeerLink& link, bool wait);
  // Rows of a prompt that came by frame: a link's lane has them mirrored, too.
  void OnPromptRows(PeerLink& link, const CachedSequence& sequence, int layer, uint32_t first, uint32_t count,
                    const std::byte* rows);

 private:
  const KvLayout layout_;
  DeviceLanes* const lanes_;
  SequenceStore* const store_;
  EpochFence* const fence_;
  PromptIntake* const prompts_;
  Streamer* const streamer_;
  Selector* const selector_;
  Executor* const executor_;
  CacheRankMetrics* const metrics_;
  // Of the plan at hand: its rows, and those of them that sit.
  std::vector<wire::PlanRow> plan_rows_;
  std::vector<DeviceLane::Row> rows_;
};

}  // namespace winnow
