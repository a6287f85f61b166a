#include "cache_rank/step/epoch_fence.h"

namespace winnow {

// What the fence protects, and how it goes together with attachments and two routers, is modelled and checked in
// proof/attach.pml.
CachedSequence* EpochFence::Holder(InferenceLink& link, uint64_t sequence_id, uint32_t attach_epoch) {
  if (CachedSequence* sequence = store_->FindAttached(sequence_id, attach_epoch, link.id)) return sequence;
  metrics_->stale_epoch_rejected.Add(1);
  const CachedSequence* current = store_->Find(sequence_id);
  // A straggler from before the peer's own re-attach: telling it that it was fenced would make it drop what it holds.
  if (current != nullptr && current->channel == link.id) return nullptr;
  constexpr size_t kMaxRemembered = 4096;
  if (link.fenced.size() >= kMaxRemembered) link.fenced.clear();
  if (link.fenced.emplace(sequence_id, attach_epoch).second) {
    streamer_->SendFenced(link, sequence_id, current == nullptr ? 0 : current->attach_epoch);
  }
  return nullptr;
}

}  // namespace winnow
