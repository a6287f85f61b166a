#include "router/dispatch/dispatched_request.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/rpc/trace_carriers.h"
#include "common/selection/selection_proto.h"
#include "router/dispatch/output_spans.h"

namespace winnow {
namespace {

using SystemClock = std::chrono::system_clock;

// Deadlines may be "never", which clock arithmetic does not survive.
constexpr std::chrono::hours kLongestWait{24 * 365};

// Often enough for a lease, and seldom beside tokens.
constexpr std::chrono::milliseconds kProgressInterval{100};

TimerQueue::Clock::time_point ToTimerClock(SystemClock::time_point deadline) {
  const auto now = SystemClock::now();
  const auto left = deadline > now + kLongestWait ? SystemClock::duration(kLongestWait) : deadline - now;
  return TimerQueue::Clock::now() + std::chrono::duration_cast<TimerQueue::Clock::duration>(left);
}

uint64_t UnixNanos(SystemClock::time_point time) {
  const auto latest = SystemClock::now() + kLongestWait;
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::min(time, latest).time_since_epoch()).count();
}

}  // namespace

DispatchedRequest::DispatchedRequest(std::shared_ptr<DispatchContext> context, TokenRequest request,
                                     TokenObserver* observer)
    : context_(std::move(context)),
      request_(std::move(request)),
      observer_(observer),
      asking_(request_.resume.has_value()),
      resume_timer_(context_->timers, strand_),
      deadline_timer_(context_->timers, strand_),
      rank_wait_timer_(context_->timers, strand_),
      backoff_timer_(context_->timers, strand_) {
  if (!request_.fork) return;
  journal_.Begin(request_.fork->token_ids);
  numerics_ = request_.fork->source.numerics;
  not_identical_ = request_.fork->source.not_identical;
}

void DispatchedRequest::Begin() {
  prefix_hashes_ = PrefixRoutes::HashesOf(request_.tenant, request_.prompt_token_ids);
  SetTimer(&deadline_timer_, ToTimerClock(request_.deadline), &DispatchedRequest::OnDeadline);
  asking_ ? AskForAnswer() : StartAttempt();
  if (strand_.Resume()) {
    context_->timers->After({}, [self = shared_from_this()] { self->strand_.Drain(); });
  }
}

void DispatchedRequest::Abandon(Leftovers leftovers) {
  strand_.Close();
  End(leftovers);
}

void DispatchedRequest::PostMembershipChange() {
  strand_.Post([self = shared_from_this()] {
    if (self->phase_ == Phase::kAttempt) {
      self->next_move_ = {};
      return self->MoveIfToDrain();
    }
    if (self->phase_ != Phase::kWaiting || self->backoff_timer_.is_set()) return;
    self->asking_ ? self->AskForAnswer() : self->StartAttempt();
  });
}

void DispatchedRequest::PostFailure(absl::Status status) {
  // Another router may go on with it.
  strand_.Post(
      [self = shared_from_this(), status = std::move(status)] { self->Fail(status, Leftovers::kKeepComputing); });
}

void DispatchedRequest::SetPhase(Phase phase) {
  auto gauge = [this](Phase p) -> std::atomic<int64_t>* {
    if (p == Phase::kAttempt) return &context_->counters.running;
    if (p == Phase::kWaiting) return &context_->counters.waiting;
    return nullptr;
  };
  if (phase == phase_) return;
  if (auto* old_gauge = gauge(phase_)) old_gauge->fetch_sub(1);
  if (auto* new_gauge = gauge(phase)) new_gauge->fetch_add(1);
  phase_ = phase;
}

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
    const Placement caches = KeysOf(route_->caches);
    const MembershipSnapshot snapshot = context_->registry->Snapshot();
    const bool caches_live = std::all_of(caches.begin(), caches.end(), [&](const RankKey& cache) {
      return snapshot.Find(v1::ROLE_CACHE_RANK, cache) != nullptr;
    });
    // Some attempts may try to reach cache ranks that are said to live; then the sequence is given up.
    attach = submitted_ && !sequence_lost_ && attach_failures_ < context_->options.max_attach_failures && caches_live &&
             !NeedsPromptTokens();
    if (attach) {
      need.caches = caches;
      if (prompt_stored_) need.work = Work::kDecode;
    } else {
      need.avoid_caches = caches;
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
  const std::string last_rank = route_ ? route_->inference.rank() : "";
  route_ = *route;
  DispatchContext::GroupRole role;
  if (!attach) {
    ReleaseHolder();
    role = RoleOf(std::exchange(sequence_id_, context_->NewSequenceId()));
    prompt_stored_ = false;
    attach_failures_ = 0;
  }
  sequence_lost_ = false;
  if (request_.spans && attempt_is_failover_) {
    request_.spans->NoteFailover(last_rank, attach ? "reattach" : "recompute", last_loss_);
  }
  Attempt(attach, role, need.work == Work::kPrefill && role.fork_of == 0 ? need.prompt_tokens : 0);
}

void DispatchedRequest::Attempt(bool attach, const DispatchContext::GroupRole& role, uint64_t queued_prompt_tokens) {
  context_->prefix_routes.Remember(prefix_hashes_, KeysOf(route_->caches));
  attempt_id_ = context_->NewAttemptId();
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
  const absl::Status submitted = client_->Submit(
      std::move(submit), [weak = weak_from_this(), id = attempt_id_](absl::StatusOr<v1::DispatchResponse> event) {
        const auto self = weak.lock();
        if (!self) return;
        self->strand_.Post([self, id, event = std::move(event)] { self->OnEvent(id, event); });
      });
  if (!submitted.ok()) return OnAttemptLost(submitted, Loss::kNotTaken);
  submitted_ = true;
  if (attempt_is_failover_) {
    (attach ? context_->counters.failovers_reattach : context_->counters.failovers_recompute).fetch_add(1);
  }
}

void DispatchedRequest::GiveUpSequence() {
  if (submitted_) context_->GiveUp(sequence_id_, *route_);
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
  submit.set_tenant(request_.tenant);
  submit.set_tenant_weight(request_.tenant_weight);
  submit.set_priority(request_.priority);
  *submit.mutable_sampling() = request_.sampling;
  *submit.mutable_stopping() = request_.stopping;
  *submit.mutable_selection() = ToProto(request_.selection);
  if (request_.top_logprobs) submit.set_top_logprobs(*request_.top_logprobs);
  submit.set_deadline_unix_nanos(UnixNanos(request_.deadline));
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

void DispatchedRequest::OnEvent(uint64_t attempt_id, const absl::StatusOr<v1::DispatchResponse>& event) {
  if (yielding_ && attempt_id == yielding_->attempt_id) return OnYieldingEvent(event);
  if (attempt_id != attempt_id_) return;  // of an attempt that was given up
  if (asking_) return OnAnswer(event);
  if (!event.ok()) {
    // Of a process that ends, the end of either stream may be seen first, and closes the other one here.
    const bool died = !absl::IsCancelled(event.status()) || context_->registry->HasDied(KeyOf(route_->inference));
    return OnAttemptLost(event.status(), died ? Loss::kRankDied : Loss::kRankGivenUp);
  }
  switch (event->event_case()) {
    case v1::DispatchResponse::kTokens:
      OnMoved();
      return OnTokens(event->tokens());
    case v1::DispatchResponse::kFinished:
      OnMoved();
      DropAttempt();
      return OnFinished(event->finished());
    case v1::DispatchResponse::kFailed: {
      if (ReturnToYielding()) return;
      const v1::DispatchResponse::Failed& failed = event->failed();
      auto code = static_cast<absl::StatusCode>(failed.code());
      if (code == absl::StatusCode::kOk) code = absl::StatusCode::kUnknown;
      const absl::Status status(code, failed.message());
      if (failed.retryable()) {
        return OnAttemptLost(status, failed.sequence_lost() ? Loss::kSequenceLost : Loss::kFailed);
      }
      if (code == absl::StatusCode::kResourceExhausted) return OnNoCapacity(status);
      if (code == absl::StatusCode::kOutOfRange) return OnTooSmall(status);
      EndAttemptSpan(status);
      DropAttempt();
      return Fail(status);
    }
    case v1::DispatchResponse::kPromptTokens:
      return OnPromptTokens(event->prompt_tokens());
    case v1::DispatchResponse::kPromptProgress: {
      if (!journal_.ids().empty()) return;
      const v1::DispatchResponse::PromptProgress& progress = event->prompt_progress();
      return observer_->OnPromptProgress(progress.computed_tokens(), progress.cached_tokens());
    }
    case v1::DispatchResponse::kHandedOver:
      return OnHandedOver();
    case v1::DispatchResponse::kResumed:
    case v1::DispatchResponse::EVENT_NOT_SET:
      return Fail(absl::InternalError("the inference rank sent an event that this router does not know"));
  }
}

void DispatchedRequest::OnFinished(const v1::DispatchResponse::Finished& finished) {
  End();
  v1::SelectionStats stats = finished.stats();
  if (not_identical_) stats.set_not_identical(true);
  if (stats.not_identical()) context_->counters.not_identical.fetch_add(1);
  if (!attempt_is_failover_) stats.set_reattach_count(0);
  observer_->OnFinished(finished.reason(), stats);
}

bool DispatchedRequest::NeedsPromptTokens() const {
  return request_.prompt_top_logprobs.has_value() && told_prompt_tokens_ < request_.prompt_token_ids.size();
}

void DispatchedRequest::OnPromptTokens(const v1::DispatchResponse::PromptTokens& tokens) {
  if (tokens.first_index() > told_prompt_tokens_) {
    return Fail(absl::DataLossError(absl::StrCat("the inference rank sent the prompt's token ", tokens.first_index(),
                                                 " where token ", told_prompt_tokens_, " was due")));
  }
  std::vector<v1::Token> unheard;
  size_t index = tokens.first_index();
  for (const v1::Token& token : tokens.tokens()) {
    if (index++ < told_prompt_tokens_) continue;
    unheard.push_back(token);
  }
  told_prompt_tokens_ += unheard.size();
  if (!unheard.empty()) observer_->OnPromptTokens(unheard);
}

void DispatchedRequest::OnTokens(const v1::DispatchResponse::TokenDelta& delta) {
  if (NeedsPromptTokens())
    return Fail(absl::DataLossError("the inference rank left out log probabilities of the prompt"));
  const absl::StatusOr<TokenJournal::Accepted> accepted = journal_.Accept(delta);
  if (!accepted.ok()) return Fail(accepted.status());
  NoteProgress();
  context_->counters.replayed_tokens.fetch_add(accepted->replayed);
  context_->counters.mismatched_tokens.fetch_add(accepted->mismatched);
  not_identical_ = not_identical_ || accepted->mismatched > 0;
  if (route_->hand_over) {
    prompt_end_ = TimerQueue::Clock::now();
  } else {
    prompt_stored_ = true;
    ReleaseHolder();
  }
  if (queued_prompt_tokens_ > 0) {
    context_->clients->PromptDone(*route_, queued_prompt_tokens_);
    queued_prompt_tokens_ = 0;
  }
  if (accepted->tokens.empty()) return;
  if (!route_->hand_over && prompt_end_) {
    const std::chrono::duration<double> since_prompt = TimerQueue::Clock::now() - *prompt_end_;
    context_->counters.hand_over_seconds.Observe(since_prompt.count());
    prompt_end_.reset();
  }
  fruitless_attempts_ = 0;
  rank_deaths_ = 0;
  attach_failures_ = 0;
  // What the client has of an answer that is resumed was counted before.
  const size_t end = accepted->first_index + accepted->tokens.size();
  const size_t begin = std::max<size_t>(accepted->first_index, request_.resume ? request_.resume->next_index : 0);
  if (end > begin) context_->counters.tokens.fetch_add(end - begin);
  if (!std::exchange(cached_prompt_known_, true)) {
    context_->counters.cached_prompt_tokens.fetch_add(delta.cached_prompt_tokens());
    observer_->OnCachedPrompt(delta.cached_prompt_tokens());
  }
  observer_->OnTokens(accepted->first_index, accepted->tokens);
  MoveIfToDrain();
}

void DispatchedRequest::NoteProgress() {
  const auto now = TimerQueue::Clock::now();
  if (now < next_progress_) return;
  next_progress_ = now + kProgressInterval;
  context_->registry->Progressed(route_->inference);
  for (const v1::Identity& cache : route_->caches) context_->registry->Progressed(cache);
}

void DispatchedRequest::OnHandedOver() {
  if (request_.spans) request_.spans->NoteEvent("hand_over");
  context_->counters.hand_overs.fetch_add(1);
  ReleaseHolder();
  holder_ = client_;
  holder_attempt_id_ = attempt_id_;
  DropAttempt();
  prompt_stored_ = true;
  hand_over_pending_ = true;
  // An attempt that was told tokens draws none.
  if (!prompt_end_) prompt_end_ = TimerQueue::Clock::now();
  StartAttempt();
}

void DispatchedRequest::ReleaseHolder() {
  if (holder_) holder_->Cancel(holder_attempt_id_);
  holder_.reset();
}

void DispatchedRequest::OnAttemptLost(const absl::Status& status, Loss loss) {
  if (ReturnToYielding()) return;
  EndAttemptSpan(status);
  DropAttempt();
  prompt_end_.reset();  // what comes next is no mere hand-over
  last_loss_ = status;
  ++fruitless_attempts_;
  if (loss == Loss::kSequenceLost) sequence_lost_ = true;
  if (loss == Loss::kFailed) ++attach_failures_;
  if (loss == Loss::kRankDied && ++rank_deaths_ >= context_->options.max_rank_deaths) {
    return Fail(absl::UnavailableError(absl::StrCat(
        "gave up: ", rank_deaths_, " inference ranks have ended while they had the request, since its last token")));
  }
  SetPhase(Phase::kWaiting);
  // The first retry is immediate; a rank that cannot be reached is suspect by now.
  if (fruitless_attempts_ == 1) return StartAttempt();
  const uint32_t doublings = std::min(fruitless_attempts_ - 2, 20u);
  const auto backoff = std::min(context_->options.first_backoff * (1 << doublings), context_->options.max_backoff);
  SetTimer(&backoff_timer_, TimerQueue::Clock::now() + backoff, &DispatchedRequest::OnBackoffOver);
}

void DispatchedRequest::OnNoCapacity(const absl::Status& status) {
  EndAttemptSpan(status);
  const Placement caches = KeysOf(route_->caches);
  DropAttempt();
  const AssignedCounts assigned = context_->clients->Assigned();
  // Nobody is there whose end would make room.
  if (std::none_of(caches.begin(), caches.end(), [&](const RankKey& cache) { return assigned.contains(cache); })) {
    return Fail(status);
  }
  sequence_lost_ = true;  // it was not opened
  if (journal_.ids().empty()) submitted_ = false;
  SetPhase(Phase::kWaiting);
  const auto backoff = std::min(context_->options.first_backoff * (1 << std::min(capacity_waits_++, 10u)),
                                context_->options.max_backoff);
  SetTimer(&backoff_timer_, TimerQueue::Clock::now() + backoff, &DispatchedRequest::OnBackoffOver);
}

void DispatchedRequest::OnTooSmall(const absl::Status& status) {
  EndAttemptSpan(status);
  const Placement caches = KeysOf(route_->caches);
  DropAttempt();
  too_small_.insert(too_small_.end(), caches.begin(), caches.end());
  too_small_status_ = absl::InvalidArgumentError(status.message());
  sequence_lost_ = true;  // it was not opened
  if (journal_.ids().empty()) submitted_ = false;
  StartAttempt();
}

void DispatchedRequest::EndAttemptSpan(const absl::Status& status) {
  if (request_.spans) request_.spans->EndAttempt(status);
}

void DispatchedRequest::DropAttempt() {
  if (attempt_id_ == 0) return;
  EndAttemptSpan(absl::OkStatus());
  context_->clients->Unassign(*route_, queued_prompt_tokens_);
  queued_prompt_tokens_ = 0;
  attempt_id_ = 0;
  client_.reset();
}

void DispatchedRequest::Fail(const absl::Status& status, Leftovers leftovers) {
  if (phase_ == Phase::kEnded) return;
  End(leftovers);
  observer_->OnFailed(status);
}

void DispatchedRequest::LetGo(RankClient& client, uint64_t attempt_id, Leftovers leftovers) const {
  if (request_.resume_key.empty() || leftovers == Leftovers::kFree) return client.Cancel(attempt_id);
  client.Leave(attempt_id, leftovers == Leftovers::kKeepTokens);
}

void DispatchedRequest::End(Leftovers leftovers) {
  if (phase_ == Phase::kEnded) return;
  // Nobody holds the sequence who could be told.
  if (phase_ == Phase::kWaiting) GiveUpSequence();
  if (client_) LetGo(*client_, attempt_id_, leftovers);
  DropAttempt();
  if (holder_) LetGo(*holder_, holder_attempt_id_, leftovers);
  holder_.reset();
  if (yielding_ && yielding_->client) LetGo(*yielding_->client, yielding_->attempt_id, leftovers);
  DropYielding();
  resume_timer_.Cancel();
  deadline_timer_.Cancel();
  rank_wait_timer_.Cancel();
  backoff_timer_.Cancel();
  SetPhase(Phase::kEnded);
  context_->Remove(this, request_.group);
}

void DispatchedRequest::SetTimer(StrandTimer* timer, TimerQueue::Clock::time_point time,
                                 void (DispatchedRequest::*function)()) {
  timer->Set(time, [weak = weak_from_this(), function] {
    if (const auto self = weak.lock()) ((*self).*function)();
  });
}

void DispatchedRequest::OnDeadline() {
  std::string message = absl::StrCat("the deadline passed after ", journal_.ids().size(), " generated tokens");
  if (fruitless_attempts_ > 0) {
    absl::StrAppend(&message, "; the last ", fruitless_attempts_,
                    " attempts have brought none, the last of them: ", last_loss_.message());
  }
  Fail(absl::DeadlineExceededError(message));
}

void DispatchedRequest::OnRankWaitOver() {
  if (phase_ == Phase::kWaiting) Fail(Annotate(wait_reason_, "no rank came in time"));
}

void DispatchedRequest::OnBackoffOver() {
  if (phase_ == Phase::kWaiting) StartAttempt();
}

}  // namespace winnow
