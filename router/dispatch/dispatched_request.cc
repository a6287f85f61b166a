#include "router/dispatch/dispatched_request.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "router/dispatch/output_spans.h"

namespace winnow {
namespace {

using SystemClock = std::chrono::system_clock;

// Deadlines may be "never", which clock arithmetic does not survive.
constexpr std::chrono::hours kLongestWait{24 * 365};

// Often enough for a lease, and seldom beside tokens.
constexpr std::chrono::milliseconds kProgressInterval{100};

TimerQueue::Clock::time_point ToTimerClock(SystemClock::time_point deadline) {
  const auto left = deadline - SystemClock::now();
  return TimerQueue::Clock::now() + std::chrono::duration_cast<TimerQueue::Clock::duration>(left);
}

}  // namespace

DispatchedRequest::DispatchedRequest(std::shared_ptr<DispatchContext> context, TokenRequest request,
                                     TokenObserver* observer)
    : context_(std::move(context)),
      request_(std::move(request)),
      observer_(observer),
      deadline_(std::min(request_.deadline, SystemClock::now() + kLongestWait)),
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
  SetTimer(&deadline_timer_, ToTimerClock(deadline_), &DispatchedRequest::OnDeadline);
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
      self->next_placing_ = {};
      self->PlaceReplica();
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
  CountReplica();
}

void DispatchedRequest::OnEvent(uint64_t attempt_id, const absl::StatusOr<v1::DispatchResponse>& event) {
  if (yielding_ && attempt_id == yielding_->attempt_id) return OnYieldingEvent(event);
  if (attempt_id != attempt_id_) return;  // of an attempt that was given up
  if (asking_) return OnAnswer(event);
  if (!event.ok()) return OnAttemptLost(event.status(), LossOfStream(event.status()));
  switch (event->event_case()) {
    case v1::DispatchResponse::kTokens:
      OnMoved();
      return OnTokens(event->tokens());
    case v1::DispatchResponse::kFinished:
      OnMoved();
      DropAttempt();
      return OnFinished(event->finished());
    case v1::DispatchResponse::kFailed: {
      const v1::DispatchResponse::Failed& failed = event->failed();
      auto code = static_cast<absl::StatusCode>(failed.code());
      if (code == absl::StatusCode::kOk) code = absl::StatusCode::kUnknown;
      const absl::Status status(code, failed.message());
      EndAttemptSpan(status);
      if (ReturnToYielding()) return;
      if (failed.retryable()) {
        const bool damaged = failed.sequence_lost() && code == absl::StatusCode::kDataLoss;
        if (damaged && ++damages_ >= context_->options.max_damages) {
          DropAttempt();
          return Fail(Annotate(status, absl::StrCat("gave up after stored rows were damaged ", damages_, " times")));
        }
        if (!failed.sequence_lost() && !attempt_has_tokens_) {
          context_->failing_ranks.Failed(KeyOf(route_->inference), TimerQueue::Clock::now());
        }
        return OnAttemptLost(status, LossOf(code, failed.sequence_lost()));
      }
      if (code == absl::StatusCode::kResourceExhausted) return OnNoCapacity(status);
      if (code == absl::StatusCode::kOutOfRange) return OnTooSmall(status);
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
  replica_is_fed_ = replica_.has_value();
  if (!std::exchange(attempt_has_tokens_, true)) context_->failing_ranks.Succeeded(KeyOf(route_->inference));
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
  NoteMoveCost();
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
  PlaceReplica();
  MoveIfToDrain();
}

void DispatchedRequest::NoteMoveCost() {
  if (!attempt_is_failover_ || std::exchange(move_noted_, true)) return;
  context_->registry->NoteMove(TimerQueue::Clock::now() - attempt_began_, !attempt_attaches_);
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

Loss DispatchedRequest::LossOfStream(const absl::Status& status) const {
  if (!absl::IsCancelled(status)) return Loss::kRankEnded;
  // Of a process that ends, the end of either stream may be seen first, and closes the other one here.
  switch (context_->registry->DepartureOf(KeyOf(route_->inference)).value_or(Departure::kLeft)) {
    case Departure::kLost:
      return Loss::kRankEnded;
    case Departure::kExpired:
      return Loss::kRankSilent;
    case Departure::kLeft:
      break;
  }
  return Loss::kRankLeft;
}

void DispatchedRequest::OnAttemptLost(const absl::Status& status, Loss loss) {
  EndAttemptSpan(status);
  if (ReturnToYielding()) return;
  DropAttempt();
  prompt_end_.reset();  // what comes next is no mere hand-over
  last_loss_ = status;
  ++fruitless_attempts_;
  context_->counters.lost_attempts[static_cast<size_t>(loss)].fetch_add(1);
  if (loss == Loss::kSequenceLost || loss == Loss::kDamaged) sequence_lost_ = true;
  if (IsWordOfRank(loss)) ++attach_failures_;
  if (loss == Loss::kRankEnded && ++rank_deaths_ >= context_->options.max_rank_deaths) {
    return Fail(absl::UnavailableError(absl::StrCat(
        "gave up: ", rank_deaths_, " inference ranks have ended while they had the request, since its last token")));
  }
  SetPhase(Phase::kWaiting);
  const auto now = TimerQueue::Clock::now();
  const auto pause =
      PauseBeforeRetry(fruitless_attempts_, loss, now - attempt_began_, context_->Jitter(), context_->options.retry);
  if (pause == pause.zero()) return StartAttempt();
  SetTimer(&backoff_timer_, now + pause, &DispatchedRequest::OnBackoffOver);
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
  const auto pause = DoublingPause(capacity_waits_++, context_->options.retry);
  SetTimer(&backoff_timer_, TimerQueue::Clock::now() + pause, &DispatchedRequest::OnBackoffOver);
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
  if (leftovers == Leftovers::kFree) ForgetReplica();
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
  if (rank_wait_timer_.is_set()) absl::StrAppend(&message, "; ", NoRankStatus().message());
  Fail(absl::DeadlineExceededError(message));
}

void DispatchedRequest::OnRankWaitOver() {
  if (phase_ != Phase::kWaiting) return;
  // Ranks that live come back as soon as they get to it: the deadline bounds the wait for them.
  if (context_->registry->RanksAreLate()) return WaitForRank(wait_reason_);
  Fail(NoRankStatus());
}

absl::Status DispatchedRequest::NoRankStatus() const {
  const std::string why = context_->options.why_no_rank ? context_->options.why_no_rank() : "";
  const absl::Status status = Annotate(wait_reason_, "no rank came in time");
  return why.empty() ? status : absl::Status(status.code(), absl::StrCat(status.message(), " (", why, ")"));
}

void DispatchedRequest::OnBackoffOver() {
  if (phase_ == Phase::kWaiting) StartAttempt();
}

}  // namespace winnow
