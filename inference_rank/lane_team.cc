#include "inference_rank/lane_team.h"

#include <algorithm>

namespace winnow {

LaneTeam::LaneTeam(std::span<const ShardLink> shards, int seats) : seats_(seats), outcomes_(shards.size()) {
  for (const ShardLink& shard : shards) {
    links_.push_back(shard.link.get());
    lanes_.push_back(shard.link->lane());
  }
}

absl::StatusOr<std::shared_ptr<LaneTeam>> LaneTeam::Join(std::span<const ShardLink> shards) {
  std::shared_ptr<LaneTeam> team(new LaneTeam(shards, shards.front().link->lane()->shape().max_rows));
  for (DecodeLane* lane : team->lanes_) WINNOW_RETURN_IF_ERROR(lane->Join(team->lanes_));
  return team;
}

bool LaneTeam::HasLinks(std::span<const ShardLink> shards) const {
  return std::equal(shards.begin(), shards.end(), links_.begin(), links_.end(),
                    [](const ShardLink& shard, const CacheLink* link) { return shard.link.get() == link; });
}

absl::Status LaneTeam::Decode(std::span<const DecodeLane::Row> rows, CacheLink** failed) {
  for (size_t i = 0; i < lanes_.size(); ++i) {
    *failed = links_[i];
    WINNOW_RETURN_IF_ERROR(lanes_[i]->Prepare(rows));
  }
  lanes_.front()->RunTogether([&](int i) {
    outcomes_[i] = lanes_[i]->Decode(rows);
    if (outcomes_[i].ok()) return;
    // The other GPUs wait for this one.
    for (DecodeLane* other : lanes_) {
      if (other != lanes_[i]) other->Abort(absl::AbortedError("a lane of another GPU has failed"));
    }
  });
  // Of the lane that failed first, rather than of those that were ended then.
  absl::Status status;
  for (size_t i = 0; i < lanes_.size(); ++i) {
    if (outcomes_[i].ok() || (!status.ok() && !absl::IsAborted(status))) continue;
    status = outcomes_[i];
    *failed = links_[i];
  }
  return status;
}

}  // namespace winnow
