#pragma once
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/base/running_clock.h"
#include "common/base/status.h"
#include "common/config/parse_value.h"
#include "common/rpc/credentials.h"
#include "winnow/v1/membership.grpc.pb.h"

namespace winnow {

// Keeps a rank in one router's table: registers, sends heartbeats, registers again whenever the router has forgotten it
// or was restarted, and says goodbye at the end.
//
// Once the newest heartbeat that the router answered is older than half the lease, on_serving(false) is called: the
// rank may soon be given up. Time in which this process did not run itself does not count. When the router answers
// again: on_serving(true). A silent router may only be late, so the connection is kept until it breaks, and with it the
// rank's place in the router's table.
class MembershipClient {
 public:
  struct Options {
    HostPort router;  // of a name with several addresses the first one
    Credentials credentials = {};
    // Sent at each registration; identity complete, with address.
    v1::RegisterRequest registration;
    // If set, completes the registration for the router at this numeric address, which must reach the addresses in it.
    // An error is final, except for UNAVAILABLE.
    std::function<absl::Status(const HostPort& router, v1::RegisterRequest& registration)> localize;
    // Asked before each heartbeat, from the client's thread.
    std::function<v1::RankLoad()> load;
    // If set, called from the client's thread with each answer that names cache ranks whose lease has run out.
    std::function<void(const std::vector<v1::Identity>& cache_ranks)> on_expired = nullptr;
    // Called from the client's thread, true first, then alternating.
    std::function<void(bool serving)> on_serving;
    // Called from the client's thread, at most once, when the router refuses the registration for good (another model,
    // a bad request): the rank cannot be of use and should end. The client gives up.
    std::function<void(const absl::Status& status)> on_refused;
  };

  explicit MembershipClient(Options options);
  // Leaves (within half a second) and stops.
  ~MembershipClient();

 private:
  using Clock = std::chrono::steady_clock;

  void Run();
  // A session, once the router's address is known. Returns true when there was one.
  bool Round();
  // One registration and the heartbeats after it, until the router forgets us, the stream breaks or Stop. Returns true
  // when the router answered at all.
  bool Session(const HostPort& router);
  void Refused(const absl::Status& status);
  // Now and then: what keeps the rank from being registered.
  void Complain(const absl::Status& status);
  // By the running clock.
  Clock::time_point RunningNow() { return running_.Advance(Clock::now()); }
  // Calls on_serving(false) if the newest answer is too old; returns how long until then.
  Clock::duration FenceIfDue();
  void SetServing(bool serving);
  // Says goodbye, once.
  void Leave();
  bool stopping();

  const Options options_;

  // The thread's own.
  std::string router_;  // that of the stub
  std::unique_ptr<v1::MembershipService::Stub> stub_;
  v1::RegisterRequest registration_;  // as the latest router was told
  bool serving_ = false;
  bool refused_ = false;
  bool left_ = false;
  Clock::time_point next_complaint_{};  // about a router that does not answer
  RunningClock running_;
  Clock::time_point answered_{};           // when the newest answered message was sent, by the running clock
  std::chrono::milliseconds lease_{2000};  // as the router said
  std::chrono::milliseconds register_timeout_;

  std::mutex mutex_;
  std::condition_variable stop_changed_;
  bool stop_ = false;  // guarded by mutex_

  std::thread thread_;
};

}  // namespace winnow
