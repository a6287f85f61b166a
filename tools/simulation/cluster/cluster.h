#pragma once
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
};

// A whole cluster in virtual time.
class Cluster {
 public:
  Cluster(uint64_t seed, const ClusterShape& shape, bool tracing);

  Runtime& runtime() { return runtime_; }
  Network& network() { return network_; }
  FrameNetwork& frames() { return frames_; }
  Process* router_process() const { return router_process_; }
  RouterProcess* router() const { return router_.get(); }

  // Names of ranks that there can be: "inference-0", "cache-1".
  const std::vector<std::string>& ranks() const { return ranks_; }
  // The present start of a rank; null while there is none.
  Process* Find(const std::string& rank) const;
  void Start(const std::string& rank);
  void Kill(const std::string& rank);

  // Every rank is in the router's table, takes work, and reaches the others.
  bool IsComplete() const;
  // Empty when nothing of any sequence is left on any rank; else what is.
  std::string Remainder() const;

  const InferenceProcess* inference(const std::string& rank) const;
  const CacheProcess* cache(const std::string& rank) const;

 private:
  struct Rank {
    Process* process = nullptr;
    std::shared_ptr<InferenceProcess> inference;
    std::shared_ptr<CacheProcess> cache;
  };
  size_t IndexOf(const std::string& rank) const;
  bool IsInference(size_t index) const { return index < shape_.inference.size(); }

  const ClusterShape shape_;
  Runtime runtime_;
  Network network_;
  Rpc rpc_{&network_};
  FrameNetwork frames_{&network_};
  std::vector<std::string> ranks_;
  std::vector<Rank> present_;
  std::vector<Rank> past_;  // dead, and kept as they were
  Process* router_process_ = nullptr;
  std::unique_ptr<RouterProcess> router_;
};

}  // namespace winnow::simulation
