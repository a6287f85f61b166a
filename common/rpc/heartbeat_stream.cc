#include "common/rpc/heartbeat_stream.h"

namespace winnow {

HeartbeatStream::HeartbeatStream(v1::MembershipService::Stub* stub) {
  stub->async()->Heartbeat(&context_, this);
  AddHold();  // Beat starts writes from outside of reactions
  StartRead(&response_);
  StartCall();
}

HeartbeatStream::~HeartbeatStream() {
  context_.TryCancel();
  RemoveHold();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return done_; });
}

void HeartbeatStream::Beat(const v1::HeartbeatRequest& request, Clock::time_point now) {
  {
    const std::lock_guard lock(mutex_);
    if (writing_ || state_.ended) return;
    writing_ = true;
    unanswered_.push_back(now);
    request_ = request;
  }
  StartWrite(&request_);
}

HeartbeatStream::State HeartbeatStream::Wait(Clock::time_point until) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, until, [this] { return news_; });
  news_ = state_.ended;
  State state = state_;
  state_.expired_cache_ranks.clear();
  return state;
}

void HeartbeatStream::OnWriteDone(bool ok) {
  const std::lock_guard lock(mutex_);
  writing_ = false;
  if (!ok) {
    state_.ended = news_ = true;
    changed_.notify_all();
  }
}

void HeartbeatStream::OnReadDone(bool ok) {
  {
    const std::lock_guard lock(mutex_);
    news_ = true;
    if (!ok) {
      state_.ended = true;
    } else {
      if (response_.unknown()) state_.unknown = true;
      state_.expired_cache_ranks.assign(response_.expired_cache_ranks().begin(), response_.expired_cache_ranks().end());
      if (!unanswered_.empty()) {
        if (!response_.unknown()) state_.answered = unanswered_.front();
        unanswered_.pop_front();
      }
    }
    changed_.notify_all();
  }
  if (ok) StartRead(&response_);
}

void HeartbeatStream::OnDone(const grpc::Status&) {
  const std::lock_guard lock(mutex_);
  state_.ended = news_ = done_ = true;
  changed_.notify_all();
}

}  // namespace winnow
