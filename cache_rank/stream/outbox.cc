#include "cache_rank/stream/outbox.h"

#include <utility>

namespace winnow {
namespace {

template <typename T>
std::unique_ptr<T> TakeOrMake(std::vector<std::unique_ptr<T>>& free) {
  if (free.empty()) return std::make_unique<T>();
  std::unique_ptr<T> taken = std::move(free.back());
  free.pop_back();
  return taken;
}

}  // namespace

void Outbox::Push(InferenceLink& link, OutgoingItem item) {
  // A queue this long means that the peer does not consume at all; the items themselves are bounded by what it asked
  // for.
  RingQueue<OutgoingItem>& queue = item.is_bulk() ? link.bulk : link.outgoing;
  if (queue.size() >= 16 * max_queued_) {
    link.Fail(absl::ResourceExhaustedError(absl::StrCat("rank ", link.rank, " does not take frames")));
    return;
  }
  queue.push_back(std::move(item));
  metrics_->queued_frames.Add(1);
}

void Outbox::Pop(RingQueue<OutgoingItem>& queue) {
  if (queue.front().delta != nullptr) free_deltas_.push_back(std::move(queue.front().delta));
  if (queue.front().partial != nullptr) free_partials_.push_back(std::move(queue.front().partial));
  queue.pop_front();
  metrics_->queued_frames.Add(-1);
}

std::unique_ptr<HeadDelta> Outbox::NewDelta() {
  return TakeOrMake(free_deltas_);
}

std::unique_ptr<HeadPartial> Outbox::NewPartial() {
  return TakeOrMake(free_partials_);
}

}  // namespace winnow
