#pragma once
#include <cstdint>

#include "cache_rank/metrics.h"
#include "cache_rank/step/data_plane.h"
#include "kernels/kernel_table.h"
#include "winnow/v1/replication.pb.h"

namespace winnow {

// Takes what feeds bring of sequences that other cache ranks hold: opens their replicas, stores their rows and frees
// them. A replica that an inference rank has attached to is refused from then on. Data-plane thread.
class ReplicaIntake {
 public:
  ReplicaIntake(Executor* executor, CacheRankMetrics* metrics) : executor_(executor), metrics_(metrics) {}

  // One state for each update, in their order.
  v1::FeedResponse Take(DataPlane& data_plane, uint64_t feed, const v1::FeedRequest& request) const;

 private:
  absl::StatusOr<uint32_t> TakeUpdate(DataPlane& data_plane, uint64_t feed, const v1::ReplicaUpdate& update) const;
  absl::StatusOr<uint32_t> Open(DataPlane& data_plane, uint64_t feed, const v1::ReplicaUpdate& update) const;
  absl::StatusOr<uint32_t> Store(DataPlane& data_plane, uint64_t feed, const v1::ReplicaUpdate& update) const;

  Executor* const executor_;
  CacheRankMetrics* const metrics_;
};

}  // namespace winnow
