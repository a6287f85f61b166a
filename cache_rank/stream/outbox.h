#pragma once
#include <cstddef>
#include <memory>
#include <vector>

#include "cache_rank/metrics.h"
#include "cache_rank/stream/inference_link.h"
#include "cache_rank/stream/outgoing_item.h"

namespace winnow {

// Puts items into the queues of links and takes them out, within bounds: above `max_queued` items nothing new should be
// begun for a link (CanTake), far above it the link is failed. What deltas and verifications hold memory for is
// recycled. Data-plane thread.
class Outbox {
 public:
  Outbox(size_t max_queued, CacheRankMetrics* metrics) : max_queued_(max_queued), metrics_(metrics) {}

  bool CanTake(const InferenceLink& link) const { return link.outgoing.size() < max_queued_; }
  void Push(InferenceLink& link, OutgoingItem item);
  // Removes the front of one of a link's queues.
  void Pop(RingQueue<OutgoingItem>& queue);

  // Empty ones, recycled.
  std::unique_ptr<HeadDelta> NewDelta();
  std::unique_ptr<HeadPartial> NewPartial();

 private:
  const size_t max_queued_;
  CacheRankMetrics* const metrics_;
  std::vector<std::unique_ptr<HeadDelta>> free_deltas_;
  std::vector<std::unique_ptr<HeadPartial>> free_partials_;
};

}  // namespace winnow
