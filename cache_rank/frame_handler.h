#pragma once
#include <cstdint>
#include <vector>

#include "cache_rank/device_lane.h"
#include "cache_rank/metrics.h"
#include "cache_rank/peer_link.h"
#include "cache_rank/prefetcher.h"
#include "cache_rank/selector.h"
#include "cache_rank/sequence_store.h"
#include "cache_rank/streamer.h"
#include "common/transport/transport.h"

namespace winnow {

// What an arriving frame does: appends rows, keeps queries, opens plans, and tells the selector. Cheap by design:
// nothing is scored here. A frame that no correct peer sends fails its link; one of a sequence that the peer no longer
// holds is answered kFenced, once per (sequence, epoch), and the other rows of its plan go on. Frames of an older epoch
// from the peer that re-attached are only counted. Data-plane thread.
class FrameHandler {
 public:
  // `hidden_size` of the residuals that may come; 0 where this rank projects none.
  FrameHandler(const KvLayout& layout, int hidden_size, const RopeShape& rope, const KernelTable* kernels,
               SequenceStore* store, Streamer* streamer, Selector* selector, Prefetcher* prefetcher, Executor* executor,
               CacheRankMetrics* metrics, DeviceLanes* lanes = nullptr)
      : layout_(layout),
        hidden_size_(hidden_size),
        rope_(rope),
        kernels_(kernels),
        store_(store),
        streamer_(streamer),
        selector_(selector),
        prefetcher_(prefetcher),
        executor_(executor),
        metrics_(metrics),
        lanes_(lanes) {}

  void Handle(PeerLink& link, const ReceivedFrame& frame);
  // Goes on with the first sequence that waits for a seat; false when there is none.
  bool RunSeats(PeerLink& link);
  // Stores the oldest rows that were pushed to the link's lane, once they are in host memory; `wait`: all of them.
  void TakeLanded(PeerLink& link, bool wait);
  // Goes on with the mirror of a sequence that began with a cached prefix, so that it has caught up when a seat is
  // asked for; false when there is none.
  bool MirrorPrefix(PeerLink& link);
  // Stores the rows of plans on the link's lane that have ended; `wait`: of all plans.
  void TakeLaneRows(PeerLink& link, bool wait);

 private:
  absl::Status HandleStepPlan(PeerLink& link, const ReceivedFrame& frame);
  absl::Status HandleLanePlan(PeerLink& link, const ReceivedFrame& frame);
  absl::Status HandleSeat(PeerLink& link, const ReceivedFrame& frame);
  absl::Status HandleLayer(PeerLink& link, const ReceivedFrame& frame);
  absl::Status HandleAppendRange(PeerLink& link, const ReceivedFrame& frame);
  absl::Status HandleLanded(PeerLink& link, const ReceivedFrame& frame);
  absl::Status HandlePromptQueries(PeerLink& link, const ReceivedFrame& frame);

  // Rows [first, first + count) of a prompt, in host memory. False: they were refused.
  bool AppendRange(PeerLink& link, CachedSequence& sequence, int layer, uint32_t first, uint32_t count,
                   const std::byte* rows);
  // Null, and the peer is fenced, when the sequence is not attached to this link with this epoch.
  CachedSequence* Holder(PeerLink& link, uint64_t sequence_id, uint32_t attach_epoch);
  // Gives a plan row its seat; false when it was refused.
  bool Seat(PeerLink& link, CachedSequence& sequence, uint64_t plan, uint32_t row_index, const wire::PlanRow& row);
  void AppendRow(PeerLink& link, CachedSequence& sequence, int layer, uint32_t position, const std::byte* rows);
  // Of a Layer frame's section, by plan row: where its part begins; null for rows whose shard lacks `layer_of_model`,
  // and everywhere where the frame has no such section. `bytes_of` a shard's part. Moves `end` behind the section.
  template <typename BytesOf>
  static void FindSection(const ReceivedFrame& frame, const OpenPlan& plan, uint32_t flag, int layer_of_model,
                          BytesOf bytes_of, size_t* end, std::vector<const std::byte*>* parts);
  // What the frame predicts for one of the sequence's layers, or lacks.
  void TakeTarget(PeerLink& link, const wire::FrameHeader& header, CachedSequence& sequence, size_t row,
                  uint32_t position);
  static bool NeedsQuery(const CachedSequence& sequence, int layer);
  void TakeQuery(PeerLink& link, CachedSequence& sequence, int layer, uint32_t position, const float* query);
  void TakePrediction(PeerLink& link, CachedSequence& sequence, int layer, uint32_t position, const float* query);
  void TakeHidden(PeerLink& link, CachedSequence& sequence, int layer, uint32_t position, const float* hidden);
  void Rotate(const CachedSequence& sequence, const float* query, uint32_t position, float* rotated) const;

  const KvLayout layout_;
  const int hidden_size_;
  const RopeShape rope_;
  const KernelTable* const kernels_;
  SequenceStore* const store_;
  Streamer* const streamer_;
  Selector* const selector_;
  Prefetcher* const prefetcher_;
  Executor* const executor_;
  CacheRankMetrics* const metrics_;
  DeviceLanes* const lanes_;  // may be null
  std::vector<DeviceLane::Row> lane_rows_;
  std::vector<const std::byte*> appended_, queries_, predictions_, hidden_;  // by row of the Layer frame at hand
};

}  // namespace winnow
