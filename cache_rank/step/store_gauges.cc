#include "cache_rank/step/store_gauges.h"

namespace winnow {
namespace {

void PublishTiers(const RowTiers& tiers, CacheRankMetrics* metrics) {
  const FastTier& fast = tiers.fast();
  metrics->fast_bytes.Set(fast.capacity_bytes() + tiers.staging_bytes());
  metrics->fast_staging_bytes.Set(tiers.staging_bytes());
  metrics->fast_index_bytes.Set(fast.index_bytes());
  metrics->fast_reserved_bytes.Set(fast.reserved_bytes());
  metrics->fast_copied_bytes.Set(fast.copied_bytes());
  metrics->tier_blocks_loaded.Set(fast.counts().blocks_loaded);
  metrics->tier_blocks_evicted.Set(fast.counts().blocks_evicted);
  const RowTiers::Counts& counts = tiers.counts();
  metrics->tier_hit_rows.Set(counts.hit_rows);
  metrics->tier_missed_rows.Set(counts.missed_rows);
  metrics->tier_loaded_rows.Set(counts.loaded_rows);
  metrics->tier_gathers.Set(counts.gathers);
  metrics->tier_gather_seconds.Set(counts.gather_seconds);
  metrics->tier_scattered_rows.Set(counts.scattered_rows);
  metrics->tier_scatters.Set(counts.scatters);
  metrics->tier_scatter_seconds.Set(counts.scatter_seconds);
  metrics->damaged_copies.Set(counts.damaged_copies);
}

}  // namespace

void PublishGauges(const SequenceStore& store, const KvBlockPool& pool, CacheRankMetrics* metrics) {
  metrics->active_sequences.Set(store.active());
  metrics->detached_sequences.Set(store.detached());
  metrics->replicas.Set(store.replicas());
  metrics->sharded_sequences.Set(store.CountSharded());
  // What gives way to any sequence that needs room counts as free.
  const PrefixCache& prefixes = store.prefixes();
  metrics->blocks_used.Set(pool.used() - prefixes.idle_blocks());
  metrics->prefix_idle_blocks.Set(prefixes.idle_blocks());
  metrics->prefix_blocks.Set(prefixes.blocks());
  metrics->prefix_evictions.Set(prefixes.evicted_units());
  metrics->blocks_reserved.Set(pool.reserved());
  if (pool.tiers() != nullptr) PublishTiers(*pool.tiers(), metrics);
}

void PublishCopies(const DevicePeerLinks::CopyBytes& bytes, CacheRankMetrics* metrics) {
  metrics->copy_device_bytes.Set(bytes.device);
  metrics->copy_device_used_bytes.Set(bytes.device_used);
  metrics->copy_host_bytes.Set(bytes.host);
  metrics->copy_host_used_bytes.Set(bytes.host_used);
}

}  // namespace winnow
