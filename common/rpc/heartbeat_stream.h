#pragma once
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <vector>

#include "grpcpp/client_context.h"
#include "winnow/v1/membership.grpc.pb.h"

namespace winnow {

// One Heartbeat call. Beat and Wait belong to one thread; gRPC's threads feed the answers in. The destructor cancels
// the call and waits for its end.
class HeartbeatStream final : private grpc::ClientBidiReactor<v1::HeartbeatRequest, v1::HeartbeatResponse> {
 public:
  using Clock = std::chrono::steady_clock;

  // What is known when Wait returns.
  struct State {
    bool ended = false;    // the call is over
    bool unknown = false;  // the router does not know this incarnation
    // When, by the caller's words, the newest answered heartbeat was sent: the lease runs at least from then.
    std::optional<Clock::time_point> answered;
    // By the answers since the last Wait: cache ranks that the router has given up for their silence.
    std::vector<v1::Identity> expired_cache_ranks;
  };

  explicit HeartbeatStream(v1::MembershipService::Stub* stub);
  ~HeartbeatStream() override;

  // Sends a heartbeat unless the one before is still on its way out. `now` is told back as State::answered.
  void Beat(const v1::HeartbeatRequest& request, Clock::time_point now);
  // Until something changes or `until`.
  State Wait(Clock::time_point until);

 private:
  void OnWriteDone(bool ok) override;
  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  grpc::ClientContext context_;
  v1::HeartbeatRequest request_;    // gRPC's while writing_
  v1::HeartbeatResponse response_;  // gRPC's while a read is under way

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  bool writing_ = false;
  bool done_ = false;
  bool news_ = false;
  std::deque<Clock::time_point> unanswered_;  // when each heartbeat without answer was sent, oldest first
  State state_;
};

}  // namespace winnow
