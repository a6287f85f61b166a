#include "cache_rank/metrics.h"

#include <algorithm>
#include <cmath>

#include "cache_rank/select/verify/verify_head.h"

namespace winnow {

void CacheRankMetrics::Observe(std::array<Mass, kMaxLayers>& histograms, size_t layer, float mass) {
  Mass& histogram = histograms[std::min(layer, kMaxLayers - 1)];
  const auto bucket = std::lower_bound(kCapturedMassBounds.begin(), kCapturedMassBounds.end() - 1, mass);
  histogram.buckets[bucket - kCapturedMassBounds.begin()].Add(1);
  histogram.sum.Add(mass);
}

void CacheRankMetrics::ObserveVerification(size_t layer, const HeadPartial& verification, bool grew) {
  verifications.Add(1);
  missed_top_k.Add(verification.action == CorrectionAction::kMissedTopK);
  widened.Add(verification.action == CorrectionAction::kWidened);
  correction_rows.Add(verification.rows_read);
  budget_growths.Add(grew);
  if (!std::isnan(verification.mass_before)) Observe(captured_mass, layer, verification.mass_before);
  if (!std::isnan(verification.mass_after)) Observe(corrected_mass, layer, verification.mass_after);
}

CacheRankSnapshot CacheRankMetrics::Snapshot() const {
  return {.selection_lookups = selection_lookups.get(),
          .selection_hits = selection_hits.get(),
          .local_rows = local_rows.get(),
          .streamed_rows = streamed_rows.get(),
          .streamed_bytes = streamed_bytes.get(),
          .prefetched_rows = prefetched_rows.get(),
          .prefetched_bytes = prefetched_bytes.get(),
          .prefetch_hits = prefetch_hits.get(),
          .prefetches = prefetches.get(),
          .refilled_bytes = refilled_bytes.get(),
          .appended_rows = appended_rows.get(),
          .selections = selections.get(),
          .selection_seconds = selection_seconds.get(),
          .scored_key_bytes = scored_key_bytes.get(),
          .scored_page_bytes = scored_page_bytes.get(),
          .shared_key_bytes = shared_key_bytes.get(),
          .projections = projections.get(),
          .verifications = verifications.get(),
          .missed_top_k = missed_top_k.get(),
          .widened = widened.get(),
          .mass_bounds = mass_bounds.get(),
          .budget_growths = budget_growths.get(),
          .correction_rows = correction_rows.get(),
          .plans = plans.get(),
          .frames_received = frames_received.get(),
          .frames_malformed = frames_malformed.get(),
          .stale_epoch_rejected = stale_epoch_rejected.get(),
          .rows_refused = rows_refused.get(),
          .transfers_failed = transfers_failed.get(),
          .sequences_opened = sequences_opened.get(),
          .sequences_attached = sequences_attached.get(),
          .sequences_forked = sequences_forked.get(),
          .sequences_expired = sequences_expired.get(),
          .admissions_refused = admissions_refused.get(),
          .active_sequences = active_sequences.get(),
          .detached_sequences = detached_sequences.get(),
          .sharded_sequences = sharded_sequences.get(),
          .channels = channels.get(),
          .blocks_used = blocks_used.get(),
          .blocks_reserved = blocks_reserved.get(),
          .blocks_total = blocks_total.get(),
          .block_bytes = block_bytes.get(),
          .prefix_hits = prefix_hits.get(),
          .prefix_lookup_tokens = prefix_lookup_tokens.get(),
          .prefix_cached_tokens = prefix_cached_tokens.get(),
          .prefix_evictions = prefix_evictions.get(),
          .prefix_blocks = prefix_blocks.get(),
          .prefix_idle_blocks = prefix_idle_blocks.get(),
          .fast_bytes = fast_bytes.get(),
          .fast_staging_bytes = fast_staging_bytes.get(),
          .fast_index_bytes = fast_index_bytes.get(),
          .fast_reserved_bytes = fast_reserved_bytes.get(),
          .fast_copied_bytes = fast_copied_bytes.get(),
          .tier_blocks_loaded = tier_blocks_loaded.get(),
          .tier_blocks_evicted = tier_blocks_evicted.get(),
          .tier_hit_rows = tier_hit_rows.get(),
          .tier_missed_rows = tier_missed_rows.get(),
          .tier_loaded_rows = tier_loaded_rows.get(),
          .tier_gathers = tier_gathers.get(),
          .tier_gather_seconds = tier_gather_seconds.get(),
          .tier_scattered_rows = tier_scattered_rows.get(),
          .tier_scatters = tier_scatters.get(),
          .tier_scatter_seconds = tier_scatter_seconds.get(),
          .copy_device_bytes = copy_device_bytes.get(),
          .copy_device_used_bytes = copy_device_used_bytes.get(),
          .copy_host_bytes = copy_host_bytes.get(),
          .copy_host_used_bytes = copy_host_used_bytes.get(),
          .peer_links = peer_links.get(),
          .peer_plans = peer_plans.get(),
          .peer_batch_rows = peer_batch_rows.get(),
          .peer_batch_rows_refused = peer_batch_rows_refused.get(),
          .state_snapshots = state_snapshots.get(),
          .prefix_queries = prefix_queries.get(),
          .prefix_pieces = prefix_pieces.get(),
          .prefix_attention_seconds = prefix_attention_seconds.get(),
          .replicas = replicas.get(),
          .replicas_promoted = replicas_promoted.get(),
          .replica_received_bytes = replica_received_bytes.get(),
          .replicas_fed = replicas_fed.get(),
          .replicas_copying = replicas_copying.get(),
          .replicas_missing = replicas_missing.get(),
          .replica_lag_tokens = replica_lag_tokens.get(),
          .replica_sent_bytes = replica_sent_bytes.get(),
          .replica_updates_fenced = replica_updates_fenced.get(),
          .replicas_refused = replicas_refused.get(),
          .damaged_sequences = damaged_sequences.get(),
          .scrubbed_bytes = scrubbed_bytes.get(),
          .scrub_passes = scrub_passes.get(),
          .scrub_damaged_rows = scrub_damaged_rows.get(),
          .mended_index_blocks = mended_index_blocks.get(),
          .damaged_copies = damaged_copies.get(),
          .queued_frames = queued_frames.get(),
          .captured_mass = SnapshotOf(captured_mass),
          .corrected_mass = SnapshotOf(corrected_mass)};
}

std::vector<CapturedMassSnapshot> CacheRankMetrics::SnapshotOf(const std::array<Mass, kMaxLayers>& histograms) const {
  std::vector<CapturedMassSnapshot> snapshot(std::min<size_t>(num_layers.get(), kMaxLayers));
  for (size_t layer = 0; layer < snapshot.size(); ++layer) {
    CapturedMassSnapshot& out = snapshot[layer];
    for (size_t i = 0; i < out.buckets.size(); ++i) {
      out.buckets[i] = histograms[layer].buckets[i].get();
      out.count += out.buckets[i];
    }
    out.sum = histograms[layer].sum.get();
  }
  return snapshot;
}

}  // namespace winnow
