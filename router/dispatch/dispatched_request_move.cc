// A request leaves a rank that drains: the attempt there and one elsewhere run until the second one has the sequence.
#include "router/dispatch/dispatched_request.h"
#include "router/dispatch/output_spans.h"

namespace winnow {
namespace {

// From one look at whether it can move to the next: beside tokens, seldom; after another rank could not take it, long
// enough for that rank to be found lost, or to have room.
constexpr std::chrono::milliseconds kMoveInterval{100};
constexpr std::chrono::milliseconds kMoveRetry{1000};

}  // namespace

void DispatchedRequest::MoveIfToDrain() {
  // A prompt that is under way would be computed again elsewhere; a rank that hands over lets go by itself.
  if (phase_ != Phase::kAttempt || asking_ || yielding_ || !prompt_stored_ || route_->hand_over) return;
  const auto now = TimerQueue::Clock::now();
  if (now < next_move_) return;
  next_move_ = now + kMoveInterval;
  if (!context_->registry->IsToDrain(KeyOf(route_->inference))) return;
  RouteNeed need = context_->NeedOf(request_);
  need.work = Work::kDecode;
  need.needs_free_row = true;
  need.caches = KeysOf(route_->caches);
  need.avoid_inference = KeyOf(route_->inference);
  const absl::StatusOr<Route> route = context_->ChooseRouteFor(need, request_.group);
  // Where it is it ends with the same bits; under other numerics it might not.
  if (!route.ok() || route->inference.rank() == route_->inference.rank() || route->numerics != numerics_) return;
  yielding_ = {.route = *route_,
               .attempt_id = attempt_id_,
               .client = std::move(client_),
               .not_identical = not_identical_,
               .last_token = now};
  // Its span ends where the other one's begins: there is one at a time.
  EndAttemptSpan(absl::OkStatus());
  route_ = *route;
  attempt_is_failover_ = false;
  Attempt(/*attach=*/true, {}, /*queued_prompt_tokens=*/0);
}

void DispatchedRequest::OnYieldingEvent(const absl::StatusOr<v1::DispatchResponse>& event) {
  if (event.ok() && event->has_tokens()) {
    yielding_->last_token = TimerQueue::Clock::now();
    return OnTokens(event->tokens());
  }
  // It was done before the other rank could take it over.
  if (event.ok() && event->has_finished()) {
    DropYielding();
    return OnFinished(event->finished());
  }
  // The sequence was taken from it, or it was lost: the attempt under way finds out which.
  if (event.ok() && !event->has_failed()) return;
  context_->clients->Unassign(yielding_->route, 0);
  yielding_->client.reset();
}

bool DispatchedRequest::ReturnToYielding() {
  if (!yielding_ || !yielding_->client) {
    yielding_.reset();
    return false;
  }
  DropAttempt();
  Yielding yielding = *std::exchange(yielding_, std::nullopt);
  route_ = std::move(yielding.route);
  attempt_id_ = yielding.attempt_id;
  client_ = std::move(yielding.client);
  numerics_ = route_->numerics;
  not_identical_ = yielding.not_identical;
  next_move_ = TimerQueue::Clock::now() + kMoveRetry;
  NotePlace();
  if (request_.spans) request_.spans->BeginAttempt(route_->inference.rank(), "return");
  return true;
}

void DispatchedRequest::OnMoved() {
  if (!yielding_) return;
  context_->counters.moved.fetch_add(1);
  if (request_.spans) request_.spans->NoteEvent("move");
  const std::chrono::duration<double> pause = TimerQueue::Clock::now() - yielding_->last_token;
  context_->counters.move_seconds.Observe(pause.count());
  // Which frees what that rank still remembers of it: the sequence is not its any more.
  if (yielding_->client) yielding_->client->Cancel(yielding_->attempt_id);
  DropYielding();
}

void DispatchedRequest::DropYielding() {
  if (yielding_ && yielding_->client) context_->clients->Unassign(yielding_->route, 0);
  yielding_.reset();
}

}  // namespace winnow
