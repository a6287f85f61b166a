#include "cache_rank/metrics.h"

#include <algorithm>

namespace winnow {

void CacheRankMetrics::ObserveCapturedMass(size_t layer, float mass) {
  Mass& histogram = captured_mass[std::min(layer, kMaxLayers - 1)];
  const auto bucket = std::lower_bound(kCapturedMassBounds.begin(), kCapturedMassBounds.end() - 1, mass);
  histogram.buckets[bucket - kCapturedMassBounds.begin()].Add(1);
  histogram.sum.Add(mass);
}

CacheRankSnapshot CacheRankMetrics::Snapshot() const {
  CacheRankSnapshot s{.selection_lookups = selection_lookups.get(),
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
                      .projections = projections.get(),
                      .plans = plans.get(),
                      .frames_received = frames_received.get(),
                      .frames_malformed = frames_malformed.get(),
                      .stale_epoch_rejected = stale_epoch_rejected.get(),
                      .rows_refused = rows_refused.get(),
                      .transfers_failed = transfers_failed.get(),
                      .sequences_opened = sequences_opened.get(),
                      .sequences_attached = sequences_attached.get(),
                      .sequences_expired = sequences_expired.get(),
                      .admissions_refused = admissions_refused.get(),
                      .active_sequences = active_sequences.get(),
                      .detached_sequences = detached_sequences.get(),
                      .channels = channels.get(),
                      .blocks_used = blocks_used.get(),
                      .blocks_reserved = blocks_reserved.get(),
                      .blocks_total = blocks_total.get(),
                      .block_bytes = block_bytes.get(),
                      .queued_frames = queued_frames.get(),
                      .captured_mass = {}};
  s.captured_mass.resize(std::min<size_t>(num_layers.get(), kMaxLayers));
  for (size_t layer = 0; layer < s.captured_mass.size(); ++layer) {
    CapturedMassSnapshot& out = s.captured_mass[layer];
    for (size_t i = 0; i < out.buckets.size(); ++i) {
      out.buckets[i] = captured_mass[layer].buckets[i].get();
      out.count += out.buckets[i];
    }
    out.sum = captured_mass[layer].sum.get();
  }
  return s;
}

}  // namespace winnow
