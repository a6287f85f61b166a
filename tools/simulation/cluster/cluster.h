#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tools/simulation/cluster/processes.h"
#include "tools/simulation/cluster/workload.h"

namespace winnow::simulation {

struct ClusterShape {
  std::vector<InferenceShape> inference = {{}, {}};
  std::vector<CacheShape> caches = {{}, {}};
  ShardRange shards;
  size_t num_routers = 1;
  uint32_t replicas = 1;  // of a sequence's KV, the first one included
};

// What routers have counted, those of ended processes included.
struct RouterCounts {
  uint64_t reattaches = 0, recomputes = 0, hand_overs = 0, resumed = 0, resumed_recompute = 0;
  uint64_t promotions = 0, expired_leases = 0;
  std::array<uint64_t, kLossNames.size()> lost_attempts{};

  RouterCounts& operator+=(const RouterCounts& other);
};

// A whole cluster in virtual time.
class Cluster {
 public:
  Cluster(uint64_t seed, const ClusterShape& shape, bool tracing);

  Runtime& runtime() { return runtime_; }
  Network& network() { return network_; }
  FrameNetwork& frames() { return frames_; }

  // Names of ranks and routers that there can be: "inference-0", "cache-1", "router-0".
  const std::vector<std::string>& ranks() const { return ranks_; }
  const std::vector<std::string>& routers() const { return routers_; }
  // The present start of a rank or a router; null while there is none.
  Process* Find(const std::string& name) const { return present_.at(name).process; }
  void Start(const std::string& name);
  void Kill(const std::string& name);
  // Called when a router has been killed.
  std::function<void(const Process* router)> on_router_killed;

  // Every rank is in the table of every router, takes work, and reaches the others.
  bool IsComplete() const;
  // Empty when nothing of any sequence is left on any rank or router; else what is.
  std::string Remainder() const;
  RouterCounts CountsOfRouters() const;

  // Null while it is not there.
  RouterProcess* router(const std::string& name) const { return present_.at(name).router.get(); }
  const CacheProcess* cache(const std::string& rank) const;

 private:
  // One start of a rank or a router: what it is made of, once that has been made.
  struct Present {
    Process* process = nullptr;
    std::shared_ptr<InferenceProcess> inference;
    std::shared_ptr<CacheProcess> cache;
    std::shared_ptr<RouterProcess> router;
  };
  void Make(const std::string& name, const RankPlace& place, Present& made);

  const ClusterShape shape_;
  Runtime runtime_;
  Network network_;
  Rpc rpc_{&network_};
  FrameNetwork frames_{&network_};
  std::vector<std::string> ranks_, routers_;
  std::map<std::string, HostPort> addresses_;
  std::map<std::string, Present> present_;
  std::vector<Present> past_;  // dead, and kept as they were
};

}  // namespace winnow::simulation
