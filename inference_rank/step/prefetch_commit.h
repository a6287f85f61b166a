#pragma once
#include "common/base/kv_layout.h"
#include "common/base/kv_shard.h"
#include "common/base/status.h"
#include "inference_rank/memory/working_set.h"
#include "inference_rank/sequence/selection_trace.h"
#include "transport/transport.h"

namespace winnow {

// Writes the rows of a Delta frame of Phase::kPrefetch into the pool of its sequence; returns how many. At any time
// between two calls of attention: the rows go to slots that no list of the frame's layer names, because the cache rank
// leaves out every index of the selection that it has sent last (cache_rank/step/prefetcher.h), and lists change with
// selections alone. `shard`: what the sending cache rank holds. Not committing such a frame would be wrong: the cache
// rank counts its rows as resident. INVALID_ARGUMENT says what is malformed.
// `trace`: the sequence's, or null.
absl::StatusOr<uint32_t> CommitPrefetch(const KvLayout& layout, const KvShard& shard, const ReceivedFrame& frame,
                                        WorkingSet& working_set, SelectionTrace* trace = nullptr);

}  // namespace winnow
