#include "common/rpc/membership_client.h"

#include <algorithm>

#include "common/base/logging.h"
#include "common/config/host_address.h"
#include "common/rpc/channel.h"
#include "common/rpc/grpc_status.h"
#include "common/rpc/heartbeat_stream.h"
#include "common/rpc/identity.h"

namespace winnow {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstBackoff{50};
constexpr milliseconds kLastBackoff{500};
// The router dials back before it answers.
constexpr milliseconds kFirstRegisterTimeout{2000};
// A router, or this rank when it is dialed, may be short of CPU: whoever found the time too short allows twice as much.
constexpr milliseconds kLastRegisterTimeout{8000};
constexpr milliseconds kLeaveTimeout{500};
constexpr std::chrono::seconds kComplaintInterval{30};

// Of the client's thread, so that Stop is prompt and absence of this process is noticed.
constexpr milliseconds kLongestWait{100};

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
      registration_(options_.registration),
      running_(2 * kLongestWait, Clock::now()),
      register_timeout_(kFirstRegisterTimeout),
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

MembershipClient::Clock::duration MembershipClient::FenceIfDue() {
  if (!serving_) return Clock::duration::max();
  const Clock::duration left = answered_ + lease_ / 2 - RunningNow();
  if (left > Clock::duration::zero()) return left;
  spdlog::warn("no answer from the router at {} for half the lease of {} ms: not serving until it is back", router_,
               lease_.count());
  SetServing(false);
  return Clock::duration::max();
}

void MembershipClient::Refused(const absl::Status& status) {
  spdlog::error("the router at {} refuses this rank: {}", router_, std::string(status.message()));
  refused_ = true;
  SetServing(false);
  if (options_.on_refused) options_.on_refused(status);
}

void MembershipClient::Complain(const absl::Status& status) {
  const Clock::time_point now = Clock::now();
  if (now < next_complaint_) return;
  spdlog::warn("not registered, trying on: {}", std::string(status.message()));
  next_complaint_ = now + kComplaintInterval;
}

bool MembershipClient::Round() {
  const absl::StatusOr<std::vector<HostPort>> addresses = ResolveHost(options_.router);
  if (addresses.ok()) return Session(addresses->front());
  Complain(addresses.status());
  return false;
}

bool MembershipClient::Session(const HostPort& router) {
  // The fence must not wait for this call.
  const Clock::duration until_fence = FenceIfDue();
  const Clock::time_point sent = RunningNow();
  const std::string address = router.ToString();
  if (router_ != address) stub_ = v1::MembershipService::NewStub(NewChannel(address, options_.credentials));
  router_ = address;
  registration_ = options_.registration;
  absl::Status status = options_.localize ? options_.localize(router, registration_) : absl::OkStatus();
  v1::RegisterResponse registered;
  if (status.ok()) {
    grpc::ClientContext context;
    SetTimeout(context, std::chrono::duration_cast<std::chrono::microseconds>(
                            std::clamp<Clock::duration>(until_fence, milliseconds(20), register_timeout_)));
    status = FromGrpc(stub_->Register(&context, registration_, &registered));
  }
  if (!status.ok()) {
    if (IsRefusal(status)) {
      Refused(status);
    } else {
      if (absl::IsDeadlineExceeded(status)) register_timeout_ = std::min(2 * register_timeout_, kLastRegisterTimeout);
      Complain(Annotate(status, absl::StrCat("the router at ", address)));
    }
    return false;
  }
  if (registered.lease_ms() > 0) lease_ = milliseconds(registered.lease_ms());
  const milliseconds interval(registered.heartbeat_ms() > 0 ? registered.heartbeat_ms() : 500);
  answered_ = sent;
  spdlog::info("registered as {} at {} with the router at {} (lease {} ms)", ToString(registration_.identity()),
               registration_.identity().address(), router_, lease_.count());
  SetServing(true);

  HeartbeatStream stream(stub_.get());
  Clock::time_point next_beat = Clock::now();
  while (!stopping()) {
    if (Clock::now() >= next_beat) {
      v1::HeartbeatRequest request;
      *request.mutable_identity() = options_.registration.identity();
      if (options_.load) *request.mutable_load() = options_.load();
      stream.Beat(request, RunningNow());
      next_beat = std::max(next_beat + interval, Clock::now());
    }
    const Clock::duration until_fence = FenceIfDue();
    const Clock::time_point now = Clock::now();
    const HeartbeatStream::State state =
        stream.Wait(std::min(next_beat, now + std::min<Clock::duration>(until_fence, kLongestWait)));
    if (state.answered.has_value() && *state.answered > answered_) {
      answered_ = *state.answered;
      if (RunningNow() < answered_ + lease_ / 2) SetServing(true);
    }
    if (options_.on_expired && !state.expired_cache_ranks.empty()) options_.on_expired(state.expired_cache_ranks);
    if (state.unknown || state.ended) {
      spdlog::warn(state.unknown ? "the router has forgotten this rank: registering again"
                                 : "lost the router: registering again");
      break;
    }
  }
  if (stopping()) Leave();  // before the stream ends, which without it means death
  return true;
}

void MembershipClient::Run() {
  milliseconds backoff = kFirstBackoff;
  while (!stopping() && !refused_) {
    const bool answered = Round();
    if (answered) {
      backoff = kFirstBackoff;
      next_complaint_ = {};
    }
    std::unique_lock lock(mutex_);
    const Clock::time_point until = Clock::now() + backoff;
    while (!stop_ && Clock::now() < until) {
      lock.unlock();
      const Clock::duration until_fence = FenceIfDue();
      lock.lock();
      const Clock::duration wait = std::min<Clock::duration>(until_fence, kLongestWait);
      stop_changed_.wait_until(lock, std::min(until, Clock::now() + wait), [this] { return stop_; });
    }
    if (!answered) backoff = std::min(backoff * 2, kLastBackoff);
  }
  if (!refused_ && !left_) Leave();
}

void MembershipClient::Leave() {
  left_ = true;
  if (stub_ == nullptr) return;
  grpc::ClientContext context;
  SetTimeout(context, kLeaveTimeout);
  v1::LeaveRequest request;
  *request.mutable_identity() = options_.registration.identity();
  v1::LeaveResponse response;
  const grpc::Status left = stub_->Leave(&context, request, &response);
  if (!left.ok()) spdlog::debug("could not tell the router goodbye: {}", left.error_message());
}

}  // namespace winnow
