#pragma once
#include <cstddef>
#include <cstdint>

#include "cache_rank/metrics.h"
#include "cache_rank/store/sequence_store.h"
#include "cache_rank/stream/delta_frames.h"
#include "cache_rank/stream/frame_entries.h"
#include "cache_rank/stream/inference_link.h"
#include "cache_rank/stream/outbox.h"

namespace winnow {

// Makes frames of what waits in a link's queues and posts as many as its send window admits. Entries of one plan and
// layer share frames, rows are gathered only now, and what belongs to nobody any more is dropped, as is everything of a
// sequence of which a damaged row was read (SequenceKv::damage). A channel that is gone fails the link. Data-plane
// thread.
class FramePoster {
 public:
  // Frames are filled to `frame_bytes`, those of prefixes and refills, for which nobody waits row by row, to kBulkSize
  // times as much. The threads of `team`, which may be null, copy the rows.
  FramePoster(size_t frame_bytes, const KvLayout& layout, Executor* team, const SequenceStore* store, Outbox* outbox,
              CacheRankMetrics* metrics)
      : frame_bytes_(frame_bytes),
        layout_(layout),
        team_(team),
        store_(store),
        outbox_(outbox),
        metrics_(metrics),
        delta_frames_(frame_bytes) {}

  // Posts what the window admits: of `bulk` a few frames, once nothing else waits.
  void Pump(InferenceLink& link);

  // Posts rows of the delta, from `first` on, at most one frame, if there is window to spare. Returns how many.
  uint32_t PostPrefetch(InferenceLink& link, const CachedSequence& sequence, int layer, int kv_head,
                        const HeadDelta& delta, uint32_t first);

 private:
  static constexpr size_t kBulkSize = 4;
  enum class Outcome { kPosted, kBlocked };

  // A place in the queue: an item, and how much of it has been sent.
  struct Place {
    size_t item = 0;
    bool started = false;
    uint32_t done = 0;
  };

  Outcome PostDeltas(InferenceLink& link);
  // Fills `frame` from `place` on, which it moves, with deltas of the plan and layer of the queue's front; leaves it
  // empty when none comes next, or when that belongs to nobody any more.
  void FillDeltaFrame(InferenceLink& link, Place* place, DeltaFrame* frame);
  // False: those behind it must wait.
  bool PostDeltaFrame(InferenceLink& link, const DeltaFrame& frame, SendBuffer buffer);
  Outcome PostPartials(InferenceLink& link);
  Outcome PostWatermarks(InferenceLink& link);
  Outcome PostRefill(InferenceLink& link);
  Outcome PostState(InferenceLink& link);
  Outcome PostPrefixStates(InferenceLink& link);
  // A frame without payload.
  Outcome PostBare(InferenceLink& link, RingQueue<OutgoingItem>& queue);

  Outcome Post(InferenceLink& link, const wire::FrameHeader& header, SendBuffer buffer);
  Outcome NoBuffer(InferenceLink& link, const absl::Status& status);
  // Null when it has none any more, or a damaged one.
  const CachedSequence* Owner(const InferenceLink& link, const OutgoingItem& item) const;
  // What the link's inference rank is told of the fast tier's room.
  uint64_t FastRowsBytes(const InferenceLink& link) const;

  const size_t frame_bytes_;
  const KvLayout layout_;
  Executor* const team_;
  const SequenceStore* const store_;
  Outbox* const outbox_;
  CacheRankMetrics* const metrics_;
  DeltaFrames delta_frames_;  // under construction: their parts are those at the front of the queue, in order
};

}  // namespace winnow
