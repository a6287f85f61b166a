#pragma once
#include <memory>
#include <string>
#include <vector>

#include "cache_rank/service/cache_rank.h"
#include "cache_rank/service/cache_service.h"
#include "cache_rank/service/replication_service.h"
#include "cache_rank/service/transport_service.h"
#include "common/rpc/admin_service.h"
#include "common/rpc/membership_client.h"
#include "inference_rank/engine/engine.h"
#include "inference_rank/service/rank_service.h"
#include "router/dispatch/dispatcher.h"
#include "router/membership/membership_service.h"
#include "router/membership/reachability.h"
#include "router/membership/registry.h"
#include "tools/simulation/cluster/toy_model.h"
#include "tools/simulation/network/rpc.h"
#include "tools/simulation/network/simulated_transport.h"

// The processes of a cluster, each made of the product's own parts as its `main` makes them. Their constructors run in
// a thread of the process; they are left as they are when it dies.

namespace winnow::simulation {

// Of all ranks.
struct RankPlace {
  std::string name;
  uint64_t incarnation = 0;
  HostPort address;
  std::vector<HostPort> routers;  // all that may be there
};

// One with each router.
using Memberships = std::vector<std::unique_ptr<MembershipClient>>;

struct InferenceShape {
  uint32_t max_running = 16;
  uint32_t slot_pages = 512;
  v1::Phases phases = v1::PHASES_BOTH;
  std::chrono::milliseconds wait_timeout{10000};  // of a step for its frames
  Nanos step = 8 * kMillisecond;                  // of computing, beside what rows and tokens cost
  Nanos prompt_token = 50 * kMicrosecond;
  std::chrono::milliseconds resume_grace{4000};  // short, so that it ends in some runs
};

class InferenceProcess {
 public:
  InferenceProcess(Rpc* rpc, FrameNetwork* frames, const RankPlace& place, const InferenceShape& shape);
  const InferenceRankMetrics& metrics() const { return metrics_; }

 private:
  v1::RankLoad Load() const;

  InferenceRankMetrics metrics_;
  ToyModel model_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<RankServiceImpl> service_;
  std::unique_ptr<AdminServiceImpl> admin_;
  Memberships memberships_;
};

struct CacheShape {
  size_t memory_bytes = size_t{8} << 20;
  std::chrono::milliseconds detach_ttl{10000};
};

class CacheProcess {
 public:
  CacheProcess(Rpc* rpc, FrameNetwork* frames, const RankPlace& place, const CacheShape& shape);
  const CacheRankMetrics& metrics() const { return rank_->metrics(); }

 private:
  std::unique_ptr<CacheRank> rank_;
  std::unique_ptr<CacheServiceImpl> cache_service_;
  std::unique_ptr<TransportServiceImpl> transport_service_;
  std::unique_ptr<ReplicationServiceImpl> replication_service_;
  std::unique_ptr<AdminServiceImpl> admin_;
  Memberships memberships_;
};

class RouterProcess {
 public:
  RouterProcess(Rpc* rpc, const std::string& name, uint64_t incarnation, const HostPort& address,
                const ShardRange& shards, uint32_t replicas);
  Dispatcher& dispatcher() { return *dispatcher_; }
  const Registry& registry() const { return registry_; }
  uint64_t expired_leases() const { return expired_leases_; }

 private:
  void CheckLeases();
  void CheckLinks();

  uint64_t expired_leases_ = 0;
  Registry registry_;
  Reachability reachability_;
  TimerQueue timers_;
  std::unique_ptr<Dispatcher> dispatcher_;
  MembershipService membership_service_;
};

}  // namespace winnow::simulation
