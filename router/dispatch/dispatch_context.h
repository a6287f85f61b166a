#pragma once
#include <condition_variable>
#include <memory>
#include <mutex>
#include <random>
#include <unordered_map>

#include "router/dispatch/cache_rank_orders.h"
#include "router/dispatch/dispatcher.h"
#include "router/dispatch/failing_ranks.h"
#include "router/dispatch/prefix_routes.h"

namespace winnow {

class DispatchedRequest;

// What the requests of one dispatcher share. Thread-safe; calls no user code.
class DispatchContext : public std::enable_shared_from_this<DispatchContext> {
 public:
  DispatchContext(DispatcherOptions options, Registry* registry, TimerQueue* timers);

  // RESOURCE_EXHAUSTED when the queue is full. Every admitted request is removed once.
  absl::Status Admit(const std::shared_ptr<DispatchedRequest>& request, uint64_t group);
  void Remove(const DispatchedRequest* request, uint64_t group);
  std::vector<std::shared_ptr<DispatchedRequest>> All() const;
  size_t num_requests() const;
  // Requests that come from now on are refused with `status`. The first one holds.
  void StopAdmitting(const absl::Status& status);
  // The registry is told of no lost rank any more. Then, once no request is admitted and every one has been ended:
  // nothing uses the registry and the timers after AwaitEmpty.
  void StopReports();
  void AwaitEmpty();
  // A sequence of a request that does without it. Its cache ranks free it now rather than after a while.
  void GiveUp(uint64_t sequence_id, const Route& route);

  // The rank lets go of the output of that key; it is told so again while the stream to it breaks.
  void FreeOn(const v1::Identity& rank, const std::string& resume_key, const std::string& tenant, int attempts);

  // Of a request that is nowhere yet.
  RouteNeed NeedOf(const TokenRequest& request) const;
  uint32_t MostPositions() const;
  // Requests of a group follow the route of the one that was routed last. 0 is no group.
  absl::StatusOr<Route> ChooseRouteFor(RouteNeed need, uint64_t group);
  // Ranks that can serve together have been there once: if they are not now, they may come back.
  bool WasComplete() const { return was_complete_; }
  void NoteMembership(const MembershipSnapshot& snapshot);

  // The first of a group that opens a sequence leads; the others fork its sequence, if they go to the same ranks.
  struct GroupRole {
    uint64_t fork_of = 0;    // the leader's sequence; 0: leads itself
    uint32_t followers = 0;  // of a leader: others that are about to come
  };
  // Of a request that opens `sequence_id` on `route`; its sequence was `previous_id` before.
  GroupRole JoinGroup(uint64_t group, uint32_t group_size, const Route& route, uint64_t sequence_id,
                      uint64_t previous_id);

  // The sequence goes on at `route`. If it leads the group, that is where others fork it from now on.
  void MoveLeader(uint64_t group, uint64_t sequence_id, const Route& route);

  uint64_t NewSequenceId();
  // From 0 to 1.
  double Jitter();
  uint64_t NewAttemptId() { return next_attempt_id_.fetch_add(1); }

  const DispatcherOptions options;
  Registry* const registry;
  TimerQueue* const timers;
  DispatcherCounters counters;
  PrefixRoutes prefix_routes;
  FailingRanks failing_ranks;

 private:
  const std::shared_ptr<Strand> reports_;  // tells the registry of lost ranks; streams may outlive the dispatcher

 public:
  const std::shared_ptr<RankClients> clients;
  CacheRankOrders cache_rank_orders;

 private:
  struct Group {
    uint32_t members = 0;
    std::optional<Route> route;
    std::optional<ForkSource> leader;
  };

  std::atomic<uint64_t> next_attempt_id_{1};
  std::atomic<bool> was_complete_{false};

  mutable std::mutex mutex_;
  std::condition_variable emptied_;
  absl::Status admits_;  // an error: what new requests are refused with
  std::mt19937_64 random_;
  std::unordered_map<const DispatchedRequest*, std::weak_ptr<DispatchedRequest>> requests_;
  std::unordered_map<uint64_t, Group> groups_;
};

}  // namespace winnow
