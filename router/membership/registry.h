#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/recent_worst.h"
#include "common/base/running_clock.h"
#include "common/base/status.h"
#include "router/membership/cluster_model.h"
#include "router/membership/expired_ranks.h"
#include "router/membership/rank_orders.h"
#include "router/membership/rank_record.h"
#include "router/membership/silence_patience.h"
#include "router/tasks/strand.h"
#include "winnow/v1/membership.pb.h"

namespace winnow {

// Why a rank is not in the table any more: it said goodbye, its heartbeat stream broke, as when its process ends, or it
// was silent for longer than it was waited for.
enum class Departure { kLeft, kLost, kExpired };

struct RegistryOptions {
  std::string cluster;
  std::chrono::milliseconds lease{2000};
  std::chrono::milliseconds heartbeat{500};
  std::chrono::milliseconds max_lease{16000};  // the longest that a silent rank is waited for
  std::chrono::milliseconds lease_check{100};  // how often ExpireLeases is called
  // Somebody tells with Reached and SetLink who reaches whom. Then a heartbeat does not clear suspicion, because it
  // only goes from the rank to the router, and inference ranks reach no cache rank before it is said that they do.
  bool reachability_is_checked = false;
  // Called after a departure, on the thread that found out.
  std::function<void(const v1::Identity&, Departure)> on_departure{};
};

// The table of ranks. A rank is in it from Register until it leaves, its heartbeat stream ends, its lease runs out, or
// another incarnation takes its name. The first rank fixes the fingerprint for the life of the registry. Thread-safe;
// time comes from the clock alone, so that nothing here waits.
//
// A lease is silence that the router has listened to: heartbeats and progress renew it, and it runs only while this
// process runs. A rank that is silent for a lease gets no work; it is given up, and its answers go on elsewhere, when
// it has been silent for longer than what was measured of all ranks lets expect (silence_patience.h), at the second
// check that finds it so: what waits in the sockets is taken first.
class Registry {
 public:
  using Clock = std::function<std::chrono::steady_clock::time_point()>;
  using StreamId = uint64_t;

  explicit Registry(
      RegistryOptions options, Clock clock = [] { return std::chrono::steady_clock::now(); });

  // FAILED_PRECONDITION: the fingerprint or the cluster differs. ABORTED: another incarnation of the rank has replaced
  // this one.
  absl::StatusOr<v1::RegisterResponse> Register(const v1::RegisterRequest& request);

  // `stream` names the heartbeat stream that it came on (NewStream). An inference rank is told which cache ranks have
  // been silent for a whole lease.
  v1::HeartbeatResponse Heartbeat(StreamId stream, const v1::HeartbeatRequest& request);
  StreamId NewStream();
  // The rank whose latest heartbeat came on this stream is dead: a process that is killed closes its sockets at once.
  // But where the router was away for longer than a lease, the rank may have given up the connection: then it is only
  // suspect, and has what is left of its lease to register again.
  void StreamEnded(StreamId stream);
  // Why this start of a rank is not there any more, if it went not long ago by any of these.
  std::optional<Departure> DepartureOf(const RankKey& rank) const;
  // A request has gone on elsewhere: how long that took, from the attempt to its first token. With `recompute` it was
  // computed again, as after the loss of a cache rank.
  void NoteMove(std::chrono::steady_clock::duration took, bool recompute);
  // The rank has been seen to work, which is as good as a heartbeat for its lease.
  void Progressed(const v1::Identity& identity);
  void Leave(const v1::Identity& identity);
  // Somebody found the rank unreachable. It gets no work until its next heartbeat, or until Reached.
  void ReportUnreachable(const v1::Identity& identity);
  // This process wants to register.
  void Knocked(const v1::Identity& identity);
  // A rank that was given up for its silence has shown that it lives, not long ago: somebody has too little CPU, and
  // what is missing now is late rather than gone. One that has tried in vain to register for a minute is not: it
  // reaches this router, which does not reach it.
  bool RanksAreLate() const;
  // The router has dialed the rank, and it answered.
  void Reached(const v1::Identity& identity);
  // Whether the inference rank reaches the cache rank.
  void SetLink(const RankKey& inference, const RankKey& cache, bool reached);
  // Orders of an operator for the ranks of that name; NOT_FOUND names those that are there. A name whose orders are not
  // those of every rank is known also while no such rank is registered.
  absl::Status SetDuty(const std::string& rank, RankDuty duty);
  absl::Status SetWeight(const std::string& rank, double weight);
  // What these two would answer.
  absl::Status CheckOrder(const std::string& rank, std::optional<double> weight = std::nullopt) const;
  // These orders and no others hold from now on, also for names that no rank has.
  void SetOrders(std::map<std::string, RankOrders> orders);
  // Those that are not the ones of every rank, by name.
  std::map<std::string, RankOrders> Orders() const;
  // Requests on that start of the inference rank are to go on elsewhere.
  bool IsToDrain(const RankKey& inference) const;
  // Drops the ranks that have been silent for too long. To be called every options.lease_check.
  void ExpireLeases();

  MembershipSnapshot Snapshot() const;
  std::chrono::steady_clock::time_point Now() const { return clock_(); }
  // Of the inference ranks that are or were last there: the smallest of each. Absent before the first one.
  std::optional<v1::ModelLimits> Limits() const;
  std::optional<v1::Fingerprint> ModelFingerprint() const;
  // Of the model's KV, as the first inference rank registered it; absent before, and where that is no possible one.
  std::optional<KvLayout> kv_layout() const;

  // Called after every change of who is there, suspect, draining or under orders (not of other load), one call at a
  // time, with a table at least as new as the change. Changes may be merged. The subscription must not outlive the
  // registry; destroying it returns once no call is running, or at once from inside one.
  using Callback = std::function<void(const MembershipSnapshot&)>;
  class Subscription;
  [[nodiscard]] std::unique_ptr<Subscription> Subscribe(Callback callback);

 private:
  struct Subscriber {
    Callback callback;
    Strand strand;
  };
  struct Entry {
    RankRecord record;
    std::chrono::steady_clock::time_point heard;          // by the clock
    std::chrono::steady_clock::time_point heard_running;  // by the running clock
    RecentWorst silence;                                  // that it came back from
    bool overdue = false;                                 // a check has found it silent for too long
    StreamId stream = 0;                                  // 0 before the first heartbeat since it registered
  };
  using Name = ExpiredRanks::Name;
  using Entries = std::map<Name, Entry>;

  Entries::iterator FindEntry(const v1::Identity& identity);  // mutex_ held
  void RecomputeLimits();                                     // mutex_ held
  std::set<std::string> RankNames() const;                    // mutex_ held
  void HoldOrders(std::map<std::string, RankOrders> orders);  // mutex_ held
  absl::Status Order(const std::string& rank, const std::function<void(RankOrders&)>& change);
  void AddLinks(RankRecord& joined);                                                 // mutex_ held
  bool Renew(Entry& entry);                                                          // mutex_ held; true: it was late
  std::chrono::steady_clock::duration SilenceOf(const Entry& entry) const;           // mutex_ held
  std::chrono::milliseconds PatienceOf(const Name& name, const Entry& entry) const;  // mutex_ held
  bool HasNowhereToGo(const Name& name, const Entry& entry) const;                   // mutex_ held
  Entries::iterator Remove(Entries::iterator entry, Departure why);                  // mutex_ held
  // Raises the version; the caller then calls Notify without the lock.
  void Changed() { ++version_; }
  void Notify();
  void Departed(const v1::Identity& identity, Departure why) const;  // without mutex_

  const RegistryOptions options_;
  const Clock clock_;

  mutable std::mutex mutex_;
  uint64_t version_ = 0;
  RunningClock running_;
  StreamId last_stream_ = 0;
  Entries entries_;
  ExpiredRanks expired_;
  MoveCost attach_cost_, recompute_cost_;
  StandingOrders orders_;
  ClusterModel model_;
  std::list<std::pair<RankKey, Departure>> departed_;  // newest first, bounded
  std::list<std::pair<Name, uint64_t>> fenced_;        // incarnations that were replaced, newest first, bounded
  std::vector<std::shared_ptr<Subscriber>> subscribers_;
};

class Registry::Subscription {
 public:
  Subscription(Registry* registry, std::shared_ptr<Subscriber> subscriber)
      : registry_(registry), subscriber_(std::move(subscriber)) {}
  ~Subscription();
  Subscription(const Subscription&) = delete;
  Subscription& operator=(const Subscription&) = delete;

 private:
  Registry* registry_;
  std::shared_ptr<Subscriber> subscriber_;
};

}  // namespace winnow
