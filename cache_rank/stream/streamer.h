#pragma once
#include <cstdint>
#include <memory>

#include "cache_rank/metrics.h"
#include "cache_rank/store/sequence_store.h"
#include "cache_rank/stream/frame_poster.h"
#include "cache_rank/stream/inference_link.h"
#include "cache_rank/stream/outbox.h"
#include "common/base/kv_layout.h"

namespace winnow {

// Rows [0, sinks) and [first, end) of so many layers from `layer` on.
struct PrefixRows {
  uint32_t layer = 0, num_layers = 1;
  uint32_t sinks = 0, first = 0, end = 0;
};

// Everything that a cache rank sends. Items go out in the order in which they were queued (Outbox); what the window
// does not admit waits in the link's queue, and rows are gathered only when their frame is posted (FramePoster). Rows
// of prefixes and refills, and attention to prefixes, wait in a queue of their own and take half of the window: a peer
// may keep such frames until it has time for their sequence, and what a step waits for must pass them. The queue is
// bounded: above `max_queued` the selector stops working for that link (CanTake), far above it the link is failed.
// Data-plane thread.
class Streamer {
 public:
  struct Options {
    // Payload that a frame is filled to: small frames let the peer commit while later ones are gathered, large ones
    // give it more to do at a time. 0: by the number of threads. An entry whose index arrays alone are larger takes up
    // to wire::kMaxPayloadBytes.
    size_t frame_bytes = 0;
    size_t max_queued = 4096;  // items
  };

  // `team`: `num_threads` threads that copy rows; may be null.
  Streamer(const Options& options, const KvLayout& layout, Executor* team, int num_threads, const SequenceStore* store,
           CacheRankMetrics* metrics)
      : metrics_(metrics),
        outbox_(options.max_queued, metrics),
        poster_(FrameBytes(options, num_threads), layout, team, store, &outbox_, metrics) {}
  Streamer(const Streamer&) = delete;
  Streamer& operator=(const Streamer&) = delete;

  bool CanTake(const InferenceLink& link) const { return outbox_.CanTake(link); }

  // Layers and kv heads are the shard's, here and below.
  // An empty delta, recycled.
  std::unique_ptr<HeadDelta> NewDelta() { return outbox_.NewDelta(); }
  void SendDelta(InferenceLink& link, const CachedSequence& sequence, int layer, int kv_head,
                 std::unique_ptr<HeadDelta> delta);
  // An empty verification, recycled.
  std::unique_ptr<HeadPartial> NewPartial() { return outbox_.NewPartial(); }
  void SendPartial(InferenceLink& link, const CachedSequence& sequence, int layer, int kv_head,
                   std::unique_ptr<HeadPartial> partial);
  void SendWatermark(InferenceLink& link, uint64_t plan, const CachedSequence& sequence);
  void SendFenced(InferenceLink& link, uint64_t sequence_id, uint32_t current_epoch);
  // The sequence is given up because of this row.
  void SendDamaged(InferenceLink& link, const CachedSequence& sequence, const DamagedRow& row);
  void SendBatchRowAnswer(InferenceLink& link, uint64_t sequence_id, uint32_t attach_epoch, uint32_t batch_row,
                          bool granted);
  void SendStagingFree(InferenceLink& link, uint64_t push);
  void SendTransferFailed(InferenceLink& link, uint64_t plan, const CachedSequence& sequence, int layer);
  // Rows that the sequence has, then RefillDone.
  void SendPrefix(InferenceLink& link, const CachedSequence& sequence, const PrefixRows& rows);
  // What the sequence kept beside rows at that position, of which a snapshot is there: ahead of what follows.
  void SendState(InferenceLink& link, const CachedSequence& sequence, uint32_t position);
  // Takes the states.
  void SendPrefixStates(InferenceLink& link, const CachedSequence& sequence, PrefixQueries& attended);
  // Of each layer sinks and ring rows below `restart`, or all rows where a list attends everything at that position or
  // `all_rows` says so, then RefillDone.
  void SendRefill(InferenceLink& link, const CachedSequence& sequence, uint32_t restart, bool all_rows = false);

  // Sends rows of the delta, from `first` on, to where its indices say, ahead of any selection: at most one frame, only
  // where nothing else waits for the link, and only with window to spare. Returns how many rows were really posted; for
  // the others nothing has happened.
  uint32_t PostPrefetch(InferenceLink& link, const CachedSequence& sequence, int layer, int kv_head,
                        const HeadDelta& delta, uint32_t first) {
    return poster_.PostPrefetch(link, sequence, layer, kv_head, delta, first);
  }

  // Posts what the window admits. Sets link.failure when the channel is gone.
  void Pump(InferenceLink& link) { poster_.Pump(link); }

 private:
  static size_t FrameBytes(const Options& options, int num_threads);
  void QueueRows(InferenceLink& link, const CachedSequence& sequence, int layer, uint32_t first, uint32_t count);
  void QueueRefillDone(InferenceLink& link, const CachedSequence& sequence, uint32_t position);

  CacheRankMetrics* const metrics_;
  Outbox outbox_;
  FramePoster poster_;
};

}  // namespace winnow
