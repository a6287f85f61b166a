#include "common/rpc/membership_client.h"

#include <algorithm>

#include "common/rpc/channel.h"
#include "common/rpc/grpc_status.h"
#include "common/rpc/heartbeat_stream.h"
#include "common/rpc/identity.h"
#include "spdlog/spdlog.h"

namespace winnow {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstBackoff{50};
constexpr milliseconds kLastBackoff{500};
constexpr milliseconds kCallTimeout{500};
constexpr std::chrono::seconds kComplaintInterval{30};

// What no repetition will cure.
bool IsRefusal(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kAborted:  // a newer start of this rank has taken its place
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnimplemented:
      return true;
    default:
      return false;
  }
}

}  // namespace

MembershipClient::MembershipClient(Options options)
    : options_(std::move(options)),
      stub_(v1::MembershipService::NewStub(NewChannel(options_.router_address))),
      thread_([this] { Run(); }) {}

MembershipClient::~MembershipClient() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stop_changed_.notify_all();
  thread_.join();
}

bool MembershipClient::stopping() {
  const std::lock_guard lock(mutex_);
  return stop_;
}

void MembershipClient::SetServing(bool serving) {
  if (serving == serving_) return;
  serving_ = serving;
  if (options_.on_serving) options_.on_serving(serving);
}

MembershipClient::Clock::time_point MembershipClient::FenceIfDue() {
  if (!serving_) return Clock::time_point::max();
  const Clock::time_point due = answered_ + lease_ / 2;
  if (Clock::now() < due) return due;
  spdlog::warn("no answer from the router at {} for half the lease of {} ms: taking no work until it is back",
               options_.router_address, lease_.count());
  SetServing(false);
  return Clock::time_point::max();
}

bool MembershipClient::Session() {
  const Clock::time_point fence = FenceIfDue();
  const Clock::time_point sent = Clock::now();
  grpc::ClientContext context;
  // The fence must not wait for this call.
  const auto until_fence = fence == Clock::time_point::max() ? Clock::duration(kCallTimeout) : fence - sent;
  SetTimeout(context, std::chrono::duration_cast<std::chrono::microseconds>(
                          std::clamp<Clock::duration>(until_fence, milliseconds(20), kCallTimeout)));
  v1::RegisterResponse registered;
  const absl::Status status = FromGrpc(stub_->Register(&context, options_.registration, &registered));
  if (!status.ok()) {
    if (IsRefusal(status)) {
      spdlog::error("the router at {} refuses this rank: {}", options_.router_address, std::string(status.message()));
      refused_ = true;
      SetServing(false);
      if (options_.on_refused) options_.on_refused(status);
    } else if (const Clock::time_point now = Clock::now(); now >= next_complaint_) {
      spdlog::warn("no answer from the router at {}, trying on: {}", options_.router_address,
                   std::string(status.message()));
      next_complaint_ = now + kComplaintInterval;
    }
    return false;
  }
  if (registered.lease_ms() > 0) lease_ = milliseconds(registered.lease_ms());
  const milliseconds interval(registered.heartbeat_ms() > 0 ? registered.heartbeat_ms() : 500);
  answered_ = sent;
  spdlog::info("registered as {} at {} (lease {} ms)", ToString(options_.registration.identity()),
               options_.router_address, lease_.count());
  SetServing(true);

  HeartbeatStream stream(stub_.get());
  Clock::time_point next_beat = Clock::now();
  while (!stopping()) {
    if (Clock::now() >= next_beat) {
      v1::HeartbeatRequest request;
      *request.mutable_identity() = options_.registration.identity();
      if (options_.load) *request.mutable_load() = options_.load();
      stream.Beat(request);
      next_beat = std::max(next_beat + interval, Clock::now());
    }
    // Wakes often enough for Stop to be prompt.
    const Clock::time_point until = std::min({next_beat, FenceIfDue(), Clock::now() + milliseconds(100)});
    const HeartbeatStream::State state = stream.Wait(until);
    if (state.answered.has_value() && *state.answered > answered_) {
      answered_ = *state.answered;
      if (Clock::now() < answered_ + lease_ / 2) SetServing(true);
    }
    if (state.unknown || state.ended) {
      spdlog::warn(state.unknown ? "the router has forgotten this rank: registering again"
                                 : "lost the router: registering again");
      break;
    }
    // A connection that swallows heartbeats is given up when the whole lease has gone.
    if (Clock::now() > answered_ + lease_) break;
  }
  if (stopping()) Leave();  // before the stream ends, which without it means death
  return true;
}

void MembershipClient::Run() {
  milliseconds backoff = kFirstBackoff;
  while (!stopping() && !refused_) {
    const bool answered = Session();
    if (answered) {
      backoff = kFirstBackoff;
      next_complaint_ = {};
    }
    std::unique_lock lock(mutex_);
    const Clock::time_point until = Clock::now() + backoff;
    while (!stop_ && Clock::now() < until) {
      lock.unlock();
      const Clock::time_point fence = FenceIfDue();
      lock.lock();
      stop_changed_.wait_until(lock, std::min(until, fence), [this] { return stop_; });
    }
    if (!answered) backoff = std::min(backoff * 2, kLastBackoff);
  }
  if (!refused_ && !left_) Leave();
}

void MembershipClient::Leave() {
  left_ = true;
  grpc::ClientContext context;
  SetTimeout(context, kCallTimeout);
  v1::LeaveRequest request;
  *request.mutable_identity() = options_.registration.identity();
  v1::LeaveResponse response;
  const grpc::Status left = stub_->Leave(&context, request, &response);
  if (!left.ok()) spdlog::debug("could not tell the router goodbye: {}", left.error_message());
}

}  // namespace winnow
