#pragma once
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "inference_rank/lane_seats.h"
#include "inference_rank/model/decode_lane.h"
#include "inference_rank/shard_link.h"

namespace winnow {

// The lanes that run the steps of a batch together, one to each cache rank with a shard of its sequences, and who sits
// on them: a sequence has the same seat on all. Both ends of a lane count steps, so that a lane belongs to one team for
// good, and the end of one lane is that of the team. Engine thread.
class LaneTeam {
 public:
  // Lets the lanes of the shards' links join. They have lanes, and no team yet.
  static absl::StatusOr<std::shared_ptr<LaneTeam>> Join(std::span<const ShardLink> shards);

  // Whether these are the links of the team, in its order.
  bool HasLinks(std::span<const ShardLink> shards) const;
  // Each lives as long as a sequence of the team does.
  std::span<CacheLink* const> links() const { return links_; }
  DecodeLane& lane(size_t i) const { return *lanes_[i]; }
  const DecodeLaneShape& shape() const { return lanes_[0]->shape(); }  // the same of all lanes, but for the shard
  LaneSeats& seats() { return seats_; }

  // One step, begun once all cache ranks have been told of it. After an error the team is over, and `failed` is the
  // link whose lane it came from.
  absl::Status Decode(std::span<const DecodeLane::Row> rows, CacheLink** failed);

  // False at the first call.
  bool End() { return std::exchange(ended_, true); }
  bool ended() const { return ended_; }

 private:
  LaneTeam(std::span<const ShardLink> shards, int seats);

  std::vector<CacheLink*> links_;
  std::vector<DecodeLane*> lanes_;
  LaneSeats seats_;
  std::vector<absl::Status> outcomes_;  // of the last step, by lane
  bool ended_ = false;
};

}  // namespace winnow
