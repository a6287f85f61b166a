// The beginning of a request that is resumed: which rank still has it?
#include <algorithm>
#include <tuple>

#include "router/dispatch/dispatched_request.h"
#include "router/dispatch/output_spans.h"

namespace winnow {

std::optional<Route> DispatchedRequest::NextToAsk() const {
  const MembershipSnapshot snapshot = context_->registry->Snapshot();
  // Sooner the rank that had it when its token was made; ranks for prefill may have a part that another went on from.
  const auto preference = [this](const RankRecord& record) {
    return std::tuple(KeyOf(record.identity) != request_.resume->inference, record.phases == v1::PHASES_PREFILL);
  };
  const RankRecord* best = nullptr;
  for (const RankRecord& record : snapshot.ranks) {
    if (record.identity.role() != v1::ROLE_INFERENCE_RANK) continue;
    if (std::find(asked_.begin(), asked_.end(), KeyOf(record.identity)) != asked_.end()) continue;
    if (best == nullptr || preference(record) < preference(*best)) best = &record;
  }
  if (best == nullptr) return std::nullopt;
  return Route{.inference = best->identity, .caches = {}, .hand_over = false, .numerics = best->numerics};
}

void DispatchedRequest::AskForAnswer() {
  SetPhase(Phase::kWaiting);
  const std::optional<Route> next = NextToAsk();
  if (!next) {
    if (std::find(asked_.begin(), asked_.end(), request_.resume->inference) != asked_.end()) return BeginAnew();
    // It may not have come to this router yet.
    if (resume_timer_.is_set()) return;
    return SetTimer(&resume_timer_, TimerQueue::Clock::now() + context_->options.resume_wait,
                    &DispatchedRequest::BeginAnew);
  }
  asked_.push_back(KeyOf(next->inference));
  route_ = next;
  attempt_id_ = context_->NewAttemptId();
  client_ = context_->clients->Get(route_->inference);
  context_->clients->Assign(*route_, 0);
  SetPhase(Phase::kAttempt);
  if (request_.spans) request_.spans->BeginAttempt(route_->inference.rank(), "resume");
  v1::DispatchRequest::Resume resume;
  resume.set_request_id(attempt_id_);
  resume.set_resume_key(request_.resume_key);
  resume.set_tenant(request_.tenant);
  const absl::Status sent = client_ ? client_->Resume(std::move(resume), EventHandler())
                                    : absl::UnavailableError("the router is shutting down");
  if (!sent.ok()) OnAnswer(sent);
}

void DispatchedRequest::OnAnswer(const absl::StatusOr<v1::DispatchResponse>& event) {
  if (!event.ok() || !event->has_resumed()) {
    DropAttempt();
    route_.reset();
    return AskForAnswer();
  }
  asking_ = false;
  resume_timer_.Cancel();
  context_->counters.resumed.fetch_add(1);
  const v1::DispatchResponse::Resumed& resumed = event->resumed();
  context_->clients->Unassign(*route_, 0);
  route_->caches.assign(resumed.cache_ranks().begin(), resumed.cache_ranks().end());
  route_->hand_over = resumed.hand_over();
  context_->clients->Assign(*route_, 0);
  sequence_id_ = resumed.sequence_id();
  NoteNumerics();
  submitted_ = true;
  NotePlace();
  PlaceReplica();
}

void DispatchedRequest::BeginAnew() {
  if (!asking_) return;
  asking_ = false;
  resume_timer_.Cancel();
  context_->counters.resumed_recompute.fetch_add(1);
  StartAttempt();
}

}  // namespace winnow
