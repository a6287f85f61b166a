#include "router/dispatch/kv_room.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <vector>

#include "common/base/kv_shard.h"

namespace winnow {

uint64_t KvBytes(const KvLayout& layout, size_t num_lists, uint64_t positions) {
  const uint64_t blocks = (positions + kBlockTokens - 1) / kBlockTokens;
  return blocks * num_lists * (layout.block_bytes() + layout.block_bytes() / 2);
}

uint32_t MostPositions(const MembershipSnapshot& snapshot, const KvLayout& layout, const ShardRange& shards) {
  std::vector<uint64_t> totals;
  for (const RankRecord& record : snapshot.ranks) {
    if (record.identity.role() != v1::ROLE_CACHE_RANK || !record.takes_work()) continue;
    if (record.load.total_bytes() == 0) return 0;  // it has not said
    totals.push_back(record.load.total_bytes());
  }
  std::sort(totals.begin(), totals.end(), std::greater<>());
  uint64_t most_blocks = 0;
  for (uint32_t count = shards.least; count <= std::min<size_t>(shards.most, totals.size()); ++count) {
    const absl::StatusOr<std::vector<KvShard>> parts = CutIntoShards(layout, static_cast<int>(count));
    if (!parts.ok()) break;
    size_t lists = 0;
    for (const KvShard& part : *parts) lists = std::max(lists, part.num_lists());
    most_blocks = std::max(most_blocks, totals[count - 1] / KvBytes(layout, lists, 1));
  }
  return static_cast<uint32_t>(
      std::min<uint64_t>(most_blocks * kBlockTokens, std::numeric_limits<uint32_t>::max() / 2));
}

}  // namespace winnow
