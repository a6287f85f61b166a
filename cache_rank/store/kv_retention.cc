#include "cache_rank/store/kv_retention.h"

#include <algorithm>

#include "cache_rank/store/block_list.h"
#include "common/selection/attended_set.h"
#include "transport/wire/wire.h"

namespace winnow {

KvRetention KvRetention::Of(const SelectionSpec& spec, const KvLayout& layout) {
  KvRetention retention;
  if (!AnyList(0, layout.num_lists(), [&](size_t list) { return winnow::Streams(spec, list); })) return retention;
  for (size_t list = 0; list < layout.num_lists(); ++list) retention.streams.push_back(winnow::Streams(spec, list));
  retention.sink_tokens = spec.sink_tokens;
  retention.newest_tokens = wire::RingTokens(spec.recent_tokens, kBlockTokens, kSlotPageTokens) + kRestartSlack;
  return retention;
}

size_t KvRetention::MostBlocks(uint32_t max_positions) const {
  // The newest rows may begin inside a block, and one more is pushed before the oldest goes.
  return std::min(BlockList::BlocksFor(max_positions),
                  BlockList::BlocksFor(sink_tokens) + BlockList::BlocksFor(newest_tokens) + 2);
}

}  // namespace winnow
