#include "inference_rank/sequence/lane_team.h"

#include <algorithm>

namespace winnow {

LaneTeam::LaneTeam(std::span<const ShardLink> shards)
    : seats_(shards.front().link->lane()->shape().max_rows), outcomes_(shards.size()) {
  for (const ShardLink& shard : shards) {
    groups_.push_back(shard.link->lane()->group());
    if (shards.size() > 1) links_.push_back(shard.link);
  }
}

absl::StatusOr<std::shared_ptr<LaneTeam>> LaneTeam::Form(std::span<const ShardLink> shards) {
  std::shared_ptr<LaneTeam> team(new LaneTeam(shards));
  std::vector<LaneGroup*> groups;
  for (const std::shared_ptr<LaneGroup>& group : team->groups_) groups.push_back(group.get());
  for (LaneGroup* group : groups) WINNOW_RETURN_IF_ERROR(group->Join(groups));
  return team;
}

bool LaneTeam::Admits(std::span<const ShardLink> shards) const {
  return std::equal(shards.begin(), shards.end(), groups_.begin(), groups_.end(),
                    [](const ShardLink& shard, const auto& group) { return shard.link->lane()->group() == group; });
}

bool LaneTeam::SharesGroup(std::span<const ShardLink> shards) const {
  return std::any_of(shards.begin(), shards.end(), [&](const ShardLink& shard) {
    return std::find(groups_.begin(), groups_.end(), shard.link->lane()->group()) != groups_.end();
  });
}

absl::Status LaneTeam::Decode(std::span<const LaneGroup::Row> rows) {
  for (const auto& group : groups_) WINNOW_RETURN_IF_ERROR(group->Prepare(rows));
  groups_.front()->RunTogether([&](int i) {
    outcomes_[i] = groups_[i]->Decode(rows);
    if (outcomes_[i].ok()) return;
    // The other GPUs wait for this one.
    for (const auto& other : groups_) {
      if (other != groups_[i]) other->Abort(absl::AbortedError("a lane of another GPU has failed"));
    }
  });
  // Of the GPU that failed first, rather than of those that were ended then.
  absl::Status status;
  for (const absl::Status& outcome : outcomes_) {
    if (!outcome.ok() && (status.ok() || absl::IsAborted(status))) status = outcome;
  }
  return status;
}

}  // namespace winnow
