#pragma once
#include "cache_rank/metrics.h"
#include "cache_rank/step/epoch_fence.h"
#include "cache_rank/step/peer_intake.h"
#include "cache_rank/step/selector.h"
#include "cache_rank/stream/inference_link.h"
#include "cache_rank/stream/streamer.h"
#include "common/base/kv_layout.h"
#include "kernels/kernel_table.h"
#include "transport/transport.h"

namespace winnow {

// Takes the rows of decode steps that needed nothing of this cache rank (wire::FrameType::kStepRows): they are
// stored as those of a plan would have been, with the journal, and answered by a watermark. Such a sequence attends to
// everything, or its rows are selected where they are computed. Data-plane thread.
class StepRowsIntake {
 public:
  StepRowsIntake(const KvLayout& layout, EpochFence* fence, PeerIntake* peer_links, Streamer* streamer,
                 Selector* selector, Executor* executor, CacheRankMetrics* metrics)
      : layout_(layout),
        fence_(fence),
        peer_links_(peer_links),
        streamer_(streamer),
        selector_(selector),
        executor_(executor),
        metrics_(metrics) {}

  // INVALID_ARGUMENT for a frame that no correct peer sends. An entry that does not continue its sequence ends that
  // sequence's attachment alone.
  absl::Status Take(InferenceLink& link, const ReceivedFrame& frame);

 private:
  void TakeEntry(InferenceLink& link, const wire::StepRowEntry& entry, const KvShard& shard, const std::byte* rows);

  const KvLayout layout_;
  EpochFence* const fence_;
  PeerIntake* const peer_links_;
  Streamer* const streamer_;
  Selector* const selector_;
  Executor* const executor_;
  CacheRankMetrics* const metrics_;
};

}  // namespace winnow
