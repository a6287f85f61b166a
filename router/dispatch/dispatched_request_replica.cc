// A request's KV on a second cache rank, which the first one feeds: where it is to be, and what becomes of it.
#include "router/dispatch/dispatched_request.h"
#include "router/dispatch/output_spans.h"
#include "router/dispatch/routing_policy.h"

namespace winnow {
namespace {

// From one look for a place to the next, beside tokens.
constexpr std::chrono::milliseconds kPlacingInterval{1000};

}  // namespace

void DispatchedRequest::PlaceReplica() {
  // Shards would need a replica each.
  if (context_->options.replicas < 2 || phase_ != Phase::kAttempt || asking_ || route_->caches.size() != 1) return;
  const auto now = TimerQueue::Clock::now();
  if (now < next_placing_) return;
  next_placing_ = now + kPlacingInterval;
  const MembershipSnapshot snapshot = context_->registry->Snapshot();
  if (replica_ && snapshot.Find(v1::ROLE_CACHE_RANK, KeyOf(*replica_)) != nullptr) return;
  const v1::Identity& primary = route_->caches.front();
  if (replica_) missed_replicas_.push_back(*replica_);
  replica_ = ChooseReplica(snapshot, KeyOf(primary), context_->NeedOf(request_).kv_bytes);
  // What begins there is copied as it comes. Whether a cache rank still has what an attempt goes on with, tokens tell.
  replica_is_fed_ = !attempt_attaches_;
  if (replica_) context_->cache_rank_orders.KeepReplica(sequence_id_, primary, *replica_);
  CountReplica();
}

bool DispatchedRequest::PromoteReplica() {
  // What the cache rank had lost when the replica was named is computed again: there is nothing to copy, and one empty
  // replica would follow another. Of a prompt that is being computed the replica has a part, behind which it goes on.
  if (!replica_ || !replica_is_fed_) return false;
  if (context_->registry->Snapshot().Find(v1::ROLE_CACHE_RANK, KeyOf(*replica_)) == nullptr) return false;
  // The lost one may only have stopped for a while.
  context_->cache_rank_orders.Release(sequence_id_, route_->caches.front());
  route_->caches = {*std::exchange(replica_, std::nullopt)};
  sequence_lost_ = false;
  attach_failures_ = 0;
  next_placing_ = {};
  context_->counters.promotions.fetch_add(1);
  if (request_.spans) request_.spans->NoteEvent("promote");
  return true;
}

// The cache rank that feeds a replica frees it with its sequence, where it can: a replica that had stopped by then has
// outlived its feed, and so has one whose primary is lost.
void DispatchedRequest::ForgetReplica() {
  if (replica_) missed_replicas_.push_back(*std::exchange(replica_, std::nullopt));
  for (const v1::Identity& replica : missed_replicas_) context_->cache_rank_orders.Release(sequence_id_, replica);
  missed_replicas_.clear();
  next_placing_ = {};
}

void DispatchedRequest::CountReplica() {
  const bool lacks = context_->options.replicas > 1 && phase_ == Phase::kAttempt && !replica_;
  if (lacks != counted_without_replica_) context_->counters.without_replica.fetch_add(lacks ? 1 : -1);
  counted_without_replica_ = lacks;
}

}  // namespace winnow
