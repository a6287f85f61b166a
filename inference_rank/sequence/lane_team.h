#pragma once
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "inference_rank/links/shard_link.h"
#include "inference_rank/sequence/lane_seats.h"
#include "model/decode_lane.h"

namespace winnow {

// The groups of lanes that run steps together, one of each GPU that holds the model, and who sits on them: a sequence
// has the same seat on all. With one GPU lanes to several cache ranks come and go, and a sequence lies whole on one of
// them. With several a team has one lane on each, to a cache rank with the shard of its heads: all sequences use all of
// them, and the end of one is that of the team. Engine thread.
class LaneTeam {
 public:
  // Of the groups that the lanes of the shards' links belong to. They are in no team yet.
  static absl::StatusOr<std::shared_ptr<LaneTeam>> Form(std::span<const ShardLink> shards);

  // Whether the shards' links have lanes of the team's groups, in their order.
  bool Admits(std::span<const ShardLink> shards) const;
  bool SharesGroup(std::span<const ShardLink> shards) const;  // that of one shard's lane, at least
  size_t num_gpus() const { return groups_.size(); }
  // With several GPUs: those of its lanes, for good.
  std::span<const std::weak_ptr<CacheLink>> links() const { return links_; }
  LaneGroup& group(size_t i) const { return *groups_[i]; }
  const DecodeLaneShape& shape() const { return groups_[0]->shape(); }
  LaneSeats& seats() { return seats_; }

  // The number of the next step, which cache ranks with rows in it are told.
  uint32_t next_step() const { return groups_[0]->next_step(); }
  // One step, begun once these cache ranks have been told of it. An error is a GPU's; what becomes of lanes is said by
  // their status.
  absl::Status Decode(std::span<const LaneGroup::Row> rows);

  // False at the first call.
  bool End() { return std::exchange(ended_, true); }
  bool ended() const { return ended_; }

 private:
  explicit LaneTeam(std::span<const ShardLink> shards);

  std::vector<std::shared_ptr<LaneGroup>> groups_;
  std::vector<std::weak_ptr<CacheLink>> links_;
  LaneSeats seats_;
  std::vector<absl::Status> outcomes_;  // of the last step, by GPU
  bool ended_ = false;
};

}  // namespace winnow
