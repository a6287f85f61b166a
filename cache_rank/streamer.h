#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "cache_rank/metrics.h"
#include "cache_rank/peer_link.h"
#include "cache_rank/sequence_store.h"
#include "common/base/kv_layout.h"
#include "common/base/status.h"

namespace winnow {

// Everything that a cache rank sends. Items go out in the order in which they were queued; what the window does not
// admit waits in the link's queue, and rows are gathered only when their frame is posted. Rows of prefixes and refills
// wait in a queue of their own and take half of the window: a peer may keep such frames until it has time for their
// sequence, and what a step waits for must pass them. The queue is bounded: above
// `max_queued` the selector stops working for that link (CanTake), far above it the link is failed. Data-plane thread.
class Streamer {
 public:
  struct Options {
    // Payload that a frame is filled to: small frames let the peer commit while later ones travel. An entry whose index
    // arrays alone are larger takes up to wire::kMaxPayloadBytes.
    size_t frame_bytes = size_t{256} << 10;
    size_t max_queued = 4096;  // items
  };

  Streamer(const Options& options, const KvLayout& layout, const SequenceStore* store, CacheRankMetrics* metrics)
      : options_(options), layout_(layout), store_(store), metrics_(metrics) {}

  // INVALID_ARGUMENT when an entry of this specification could not be framed.
  absl::Status CheckFits(const SelectionSpec& spec, uint32_t max_positions) const;

  bool CanTake(const PeerLink& link) const { return link.outgoing.size() < options_.max_queued; }

  // Layers and kv heads are the shard's, here and below.
  // An empty delta, recycled.
  std::unique_ptr<HeadDelta> NewDelta();
  void SendDelta(PeerLink& link, const CachedSequence& sequence, int layer, int kv_head,
                 std::unique_ptr<HeadDelta> delta);
  // An empty verdict, recycled.
  std::unique_ptr<HeadPartial> NewPartial();
  void SendPartial(PeerLink& link, const CachedSequence& sequence, int layer, int kv_head,
                   std::unique_ptr<HeadPartial> partial);
  void SendWatermark(PeerLink& link, uint64_t plan, const CachedSequence& sequence);
  void SendFenced(PeerLink& link, uint64_t sequence_id, uint32_t current_epoch);
  void SendSeated(PeerLink& link, uint64_t sequence_id, uint32_t attach_epoch, uint32_t seat, bool granted);
  void SendLandingFree(PeerLink& link, uint64_t push);
  void SendTransferFailed(PeerLink& link, uint64_t plan, const CachedSequence& sequence, int layer);
  // All rows below `end`, which the sequence has, of layers [first_layer, last_layer], then RefillDone.
  void SendPrefix(PeerLink& link, const CachedSequence& sequence, int first_layer, int last_layer, uint32_t end);
  // Of each layer sinks and ring rows below `restart`, or all rows where a list attends everything at that position,
  // then RefillDone.
  void SendRefill(PeerLink& link, const CachedSequence& sequence, uint32_t restart);

  // Sends rows of the delta, from `first` on, to where its indices say, ahead of any selection: at most one frame, only
  // where nothing else waits for the link, and only with window to spare. Returns how many rows were really posted; for
  // the others nothing has happened.
  uint32_t PostPrefetch(PeerLink& link, const CachedSequence& sequence, int layer, int kv_head, const HeadDelta& delta,
                        uint32_t first);

  // Posts what the window admits. Sets link.failure when the channel is gone.
  void Pump(PeerLink& link);

 private:
  enum class Outcome { kPosted, kBlocked };
  struct Part {
    size_t item;  // in the queue
    const CachedSequence* sequence;
    uint32_t rows;
    bool last;
  };

  void Queue(PeerLink& link, OutgoingItem item);
  void QueueRows(PeerLink& link, const CachedSequence& sequence, int layer, uint32_t first, uint32_t count);
  void QueueTransferFailed(PeerLink& link, uint64_t plan, uint64_t sequence_id, uint32_t attach_epoch,
                           uint16_t layer_of_model);
  void QueueRefillDone(PeerLink& link, const CachedSequence& sequence, uint32_t position);
  void PopFront(RingQueue<OutgoingItem>& queue);
  const CachedSequence* Owner(const PeerLink& link, const OutgoingItem& item) const;
  size_t PlanDeltaFrame(PeerLink& link);
  void WriteEntry(const OutgoingItem& item, const Part& part, std::byte* payload, size_t* offset) const;
  Outcome PostDeltas(PeerLink& link);
  Outcome PostPartials(PeerLink& link);
  uint64_t FastRowsBytes(const PeerLink& link) const;
  Outcome PostWatermarks(PeerLink& link);
  Outcome PostRefill(PeerLink& link);
  Outcome PostBare(PeerLink& link, RingQueue<OutgoingItem>& queue);
  Outcome Post(PeerLink& link, const wire::FrameHeader& header, SendBuffer buffer);
  Outcome NoBuffer(PeerLink& link, const absl::Status& status);

  const Options options_;
  const KvLayout layout_;
  const SequenceStore* const store_;
  CacheRankMetrics* const metrics_;
  std::vector<std::unique_ptr<HeadDelta>> free_deltas_;
  std::vector<std::unique_ptr<HeadPartial>> free_partials_;
  std::vector<Part> parts_;  // of the frame under construction
};

}  // namespace winnow
