#pragma once
#include "cache_rank/metrics.h"
#include "cache_rank/store/kv_block_pool.h"
#include "cache_rank/store/sequence_store.h"
#include "cache_rank/stream/device_peer_link.h"

namespace winnow {

// Sets the gauges of sequences, blocks, cached prefixes and tiers to what there is now. Data-plane thread.
void PublishGauges(const SequenceStore& store, const KvBlockPool& pool, CacheRankMetrics* metrics);

// Those of what peer links push from.
void PublishCopies(const DevicePeerLinks::CopyBytes& bytes, CacheRankMetrics* metrics);

}  // namespace winnow
