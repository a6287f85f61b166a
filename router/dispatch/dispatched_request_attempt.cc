// How attempts are made: a route, the sequence that goes on or begins there, and what the rank is told.
#include <algorithm>
#include <utility>

#include "common/rpc/trace_carriers.h"
#include "common/selection/selection_proto.h"
#include "router/dispatch/dispatched_request.h"
#include "router/dispatch/output_spans.h"

namespace winnow {

void DispatchedRequest::StartAttempt() {
  // Waiting first: a rank that joins after the table was read then wakes this request.
  SetPhase(Phase::kWaiting);
  RouteNeed need = context_->NeedOf(request_);
  need.prefix_caches = context_->prefix_routes.Find(prefix_hashes_);
  need.too_small = too_small_;
  bool attach = false;
  if (request_.fork && !fork_tried_) {
    need.prefer_inference = request_.fork->source.inference;
    need.prefer_caches = request_.fork->source.caches;
    if (!journal_.ids().empty()) need.work = Work::kDecode;
  }
  if (route_) {
    need.avoid_inference = KeyOf(route_->inference);
    // Some attempts may try to reach cache ranks that are said to live; then the sequence, or what they have of it, is
    // given up.
    const bool has_caches = !sequence_lost_ && attach_failures_ < context_->options.max_attach_failures && CachesLive();
    attach = submitted_ && !NeedsPromptTokens() && (has_caches || PromoteReplica());
    const Placement caches = KeysOf(route_->caches);
    if (attach) {
      need.caches = caches;
      if (prompt_stored_) need.work = Work::kDecode;
    } else if (!is_fork_ || !journal_.ids().empty()) {
      need.avoid_caches = caches;  // what was to be forked, and was not yet, is not lost there
    }
  }
  const absl::StatusOr<Route> route = context_->ChooseRouteFor(need, request_.group);
  if (!route.ok()) return WaitForRank(route.status());
  rank_wait_timer_.Cancel();
  const bool is_tried = std::all_of(route->caches.begin(), route->caches.end(), [&](const v1::Identity& cache) {
    return std::find(too_small_.begin(), too_small_.end(), KeyOf(cache)) != too_small_.end();
  });
  if (is_tried) return Fail(too_small_status_);

  if (!attach) GiveUpSequence();
  attempt_is_failover_ = submitted_ && !(attach && hand_over_pending_);
  hand_over_pending_ = false;
  if (attempt_is_failover_ && request_.spans) {
    request_.spans->NoteFailover(route_->inference.rank(), attach ? "reattach" : "recompute", last_loss_);
  }
  route_ = *route;
  DispatchContext::GroupRole role;
  if (!attach) {
    ReleaseHolder();
    role = RoleOf(std::exchange(sequence_id_, context_->NewSequenceId()));
    is_fork_ = role.fork_of != 0;
    prompt_stored_ = false;
    attach_failures_ = 0;
  } else {
    context_->MoveLeader(request_.group, sequence_id_, *route_);
  }
  sequence_lost_ = false;
  Attempt(attach, role, need.work == Work::kPrefill && role.fork_of == 0 ? need.prompt_tokens : 0);
}

bool DispatchedRequest::CachesLive() const {
  const MembershipSnapshot snapshot = context_->registry->Snapshot();
  return std::all_of(route_->caches.begin(), route_->caches.end(), [&](const v1::Identity& cache) {
    return snapshot.Find(v1::ROLE_CACHE_RANK, KeyOf(cache)) != nullptr;
  });
}

void DispatchedRequest::Attempt(bool attach, const DispatchContext::GroupRole& role, uint64_t queued_prompt_tokens) {
  context_->prefix_routes.Remember(prefix_hashes_, KeysOf(route_->caches));
  attempt_id_ = context_->NewAttemptId();
  attempt_has_tokens_ = false;
  attempt_attaches_ = attach;
  move_noted_ = false;
  attempt_began_ = TimerQueue::Clock::now();
  client_ = context_->clients->Get(route_->inference);
  NoteNumerics();
  queued_prompt_tokens_ = queued_prompt_tokens;
  context_->clients->Assign(*route_, queued_prompt_tokens_);
  NotePlace();
  SetPhase(Phase::kAttempt);
  if (!client_) return OnAttemptLost(absl::UnavailableError("the router is shutting down"), Loss::kNotTaken);
  v1::DispatchRequest::Submit submit = MakeSubmit(attach, role);
  if (request_.spans) {
    SetTrace(submit, request_.spans->BeginAttempt(route_->inference.rank(), attach ? "attach" : "open"));
  }
  const absl::Status submitted = client_->Submit(std::move(submit), EventHandler());
  if (!submitted.ok()) return OnAttemptLost(submitted, Loss::kNotTaken);
  submitted_ = true;
  PlaceReplica();
  if (attempt_is_failover_) {
    (attach ? context_->counters.failovers_reattach : context_->counters.failovers_recompute).fetch_add(1);
  }
}

RankClient::Handler DispatchedRequest::EventHandler() {
  return [weak = weak_from_this(), id = attempt_id_](absl::StatusOr<v1::DispatchResponse> event) {
    const auto self = weak.lock();
    if (!self) return;
    self->strand_.Post([self, id, event = std::move(event)] { self->OnEvent(id, event); });
  };
}

void DispatchedRequest::GiveUpSequence() {
  if (submitted_) context_->GiveUp(sequence_id_, *route_);
  ForgetReplica();
}

void DispatchedRequest::NoteNumerics() {
  const bool goes_on = submitted_ || (request_.fork && !numerics_.empty());
  not_identical_ = not_identical_ || (goes_on && route_->numerics != numerics_);
  numerics_ = route_->numerics;
}

void DispatchedRequest::NotePlace() {
  std::lock_guard lock(place_mutex_);
  place_ = {.sequence_id = sequence_id_,
            .inference = KeyOf(route_->inference),
            .caches = KeysOf(route_->caches),
            .numerics = numerics_,
            .not_identical = not_identical_};
}

std::optional<ForkSource> DispatchedRequest::fork_source() const {
  std::lock_guard lock(place_mutex_);
  return place_;
}

DispatchContext::GroupRole DispatchedRequest::RoleOf(uint64_t previous_id) {
  if (!request_.fork) {
    return context_->JoinGroup(request_.group, request_.group_size, *route_, sequence_id_, previous_id);
  }
  const ForkSource& source = request_.fork->source;
  const bool is_near = source.inference == KeyOf(route_->inference) && source.caches == KeysOf(route_->caches);
  return {.fork_of = std::exchange(fork_tried_, true) || !is_near ? 0 : source.sequence_id};
}

v1::DispatchRequest::Submit DispatchedRequest::MakeSubmit(bool attach, const DispatchContext::GroupRole& role) const {
  v1::DispatchRequest::Submit submit;
  submit.set_request_id(attempt_id_);
  submit.set_sequence_id(sequence_id_);
  submit.mutable_cache_ranks()->Assign(route_->caches.begin(), route_->caches.end());
  submit.mutable_prompt_token_ids()->Assign(request_.prompt_token_ids.begin(), request_.prompt_token_ids.end());
  submit.mutable_generated_token_ids()->Assign(journal_.ids().begin(), journal_.ids().end());
  submit.set_attach(attach);
  submit.set_repeats(attempt_is_failover_);
  submit.set_tenant(request_.tenant);
  submit.set_tenant_weight(request_.tenant_weight);
  submit.set_priority(request_.priority);
  *submit.mutable_sampling() = request_.sampling;
  *submit.mutable_stopping() = request_.stopping;
  *submit.mutable_selection() = ToProto(request_.selection);
  if (request_.top_logprobs) submit.set_top_logprobs(*request_.top_logprobs);
  submit.set_deadline_unix_nanos(std::chrono::nanoseconds(deadline_.time_since_epoch()).count());
  submit.set_hand_over(route_->hand_over);
  submit.set_fork_sequence_id(NeedsPromptTokens() ? 0 : role.fork_of);
  submit.set_fork_at_current_token(request_.fork.has_value());
  submit.set_followers(role.followers);
  submit.set_trace_parts(request_.trace_parts);
  submit.set_skip_prefix_cache(request_.skip_prefix_cache);
  submit.set_prompt_progress(request_.prompt_progress && journal_.ids().empty());
  if (NeedsPromptTokens()) submit.set_prompt_top_logprobs(*request_.prompt_top_logprobs);
  submit.set_resume_key(request_.resume_key);
  return submit;
}

void DispatchedRequest::WaitForRank(const absl::Status& reason) {
  wait_reason_ = reason;
  if (rank_wait_timer_.is_set()) return;
  SetTimer(&rank_wait_timer_, TimerQueue::Clock::now() + context_->options.rank_wait,
           &DispatchedRequest::OnRankWaitOver);
}

}  // namespace winnow
