#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/timeline/timeline.h"

namespace winnow {

struct HeadPartial;

// What a cache rank counts. Written by its data-plane thread, read by any thread with relaxed loads; `Snapshot` copies
// it into plain numbers for the exporter.

// Upper bounds of the captured-mass buckets; the last bucket is everything up to 1.
inline constexpr std::array<float, 10> kCapturedMassBounds = {0.3f,  0.5f, 0.6f,  0.7f,  0.8f,
                                                              0.85f, 0.9f, 0.95f, 0.98f, 1.0f};

struct CapturedMassSnapshot {
  std::array<uint64_t, kCapturedMassBounds.size()> buckets{};  // not cumulative
  uint64_t count = 0;
  double sum = 0;
};

struct CacheRankSnapshot {
  uint64_t selection_lookups = 0;  // selected rows
  uint64_t selection_hits = 0;     // of those, resident already
  uint64_t local_rows = 0;         // of those, copied from the peer's recent ring
  uint64_t streamed_rows = 0;      // of those, sent
  uint64_t streamed_bytes = 0;     // row bytes of Delta frames that steps wait for
  uint64_t prefetched_rows = 0;    // rows sent ahead of any selection
  uint64_t prefetched_bytes = 0;   // their bytes
  uint64_t prefetch_hits = 0;      // of those rows, selected while they were still there; part of selection_hits
  uint64_t prefetches = 0;         // (position, layer) pairs that were looked at for it
  uint64_t refilled_bytes = 0;     // row bytes of Refill frames
  uint64_t appended_rows = 0;      // one per layer and kv head
  uint64_t selections = 0;         // (position, layer) pairs that were scored
  double selection_seconds = 0;    // wall time of scoring
  uint64_t scored_key_bytes = 0;   // keys, and pseudo-keys of pages, that selections and their measurement read
  uint64_t scored_page_bytes = 0;  // of these, of pages
  uint64_t shared_key_bytes = 0;   // not read, because another sequence of the batch had them read
  uint64_t projections = 0;        // queries computed here from residuals, one per position and layer
  uint64_t verifications = 0;      // (position, layer, kv head) verified with their real query
  uint64_t missed_top_k = 0;       // of those, corrected by rows of the top-k
  uint64_t widened = 0;            // of those, corrected by more than the top-k
  uint64_t mass_bounds = 0;        // captured masses that are lower bounds: not every key was scored
  uint64_t budget_growths = 0;     // heads whose budget was doubled
  uint64_t correction_rows = 0;    // rows read for corrections
  uint64_t plans = 0;
  uint64_t frames_received = 0;
  uint64_t frames_malformed = 0;
  uint64_t stale_epoch_rejected =
      0;                          // rows and frames of an older attach_epoch, another channel or an unknown sequence
  uint64_t rows_refused = 0;      // plan rows that broke the protocol: answered kTransferFailed
  uint64_t transfers_failed = 0;  // deltas that could not be posted
  uint64_t sequences_opened = 0;
  uint64_t sequences_attached = 0;  // re-attached
  uint64_t sequences_forked = 0;
  uint64_t sequences_expired = 0;  // detached for longer than the TTL
  uint64_t admissions_refused = 0;
  uint64_t active_sequences = 0;
  uint64_t detached_sequences = 0;
  uint64_t sharded_sequences = 0;  // of which other cache ranks hold parts, too
  uint64_t channels = 0;
  uint64_t blocks_used = 0;
  uint64_t blocks_reserved = 0;
  uint64_t blocks_total = 0;
  uint64_t block_bytes = 0;
  uint64_t prefix_hits = 0;           // sequences that began with cached positions
  uint64_t prefix_lookup_tokens = 0;  // prompt tokens of sequences that could have
  uint64_t prefix_cached_tokens = 0;  // of those, the ones that were there
  uint64_t prefix_evictions = 0;      // units of 32 positions
  uint64_t prefix_blocks = 0;         // of prompts that are kept, whether or not a sequence uses them
  uint64_t prefix_idle_blocks = 0;    // of those, the ones that no sequence uses: they give way
  // With two tiers; all 0 with one. Of the fast one, in bytes:
  uint64_t fast_bytes = 0;           // all
  uint64_t fast_staging_bytes = 0;   // rows on their way to the large tier
  uint64_t fast_index_bytes = 0;     // keys and pages to be scored
  uint64_t fast_reserved_bytes = 0;  // promised for index
  uint64_t fast_copied_bytes = 0;    // copies of blocks of rows
  uint64_t tier_blocks_loaded = 0;   // that became copies
  uint64_t tier_blocks_evicted = 0;  // copies that made room
  uint64_t tier_hit_rows = 0;        // rows read from copies
  uint64_t tier_missed_rows = 0;     // rows read that had none
  uint64_t tier_loaded_rows = 0;     // rows read from the large tier for those, whole blocks included
  uint64_t tier_gathers = 0;         // reads in which a row missed
  double tier_gather_seconds = 0;
  uint64_t tier_scattered_rows = 0;  // written to the large tier
  uint64_t tier_scatters = 0;
  double tier_scatter_seconds = 0;
  uint64_t copy_device_bytes = 0;        // for rows that peer links push, in the GPU's memory
  uint64_t copy_device_used_bytes = 0;   // of sequences
  uint64_t copy_host_bytes = 0;          // the same in pinned host memory
  uint64_t copy_host_used_bytes = 0;     // of sequences
  uint64_t peer_links = 0;               // open
  uint64_t peer_plans = 0;               // plans that ran between two GPUs; part of plans
  uint64_t peer_batch_rows = 0;          // sequences that were given one
  uint64_t peer_batch_rows_refused = 0;  // that go by frames instead
  uint64_t state_snapshots = 0;          // of what hybrid models' sequences keep beside rows, that came whole
  uint64_t prefix_queries = 0;  // of prompts, that attended to a cached prefix here, one per position and layer
  uint64_t prefix_pieces = 0;   // in which they did
  double prefix_attention_seconds = 0;
  // Replicas of sequences that other cache ranks hold, here, and of sequences held here, elsewhere.
  uint64_t replicas = 0;
  uint64_t replicas_promoted = 0;       // that an inference rank has attached to
  uint64_t replica_received_bytes = 0;  // rows that were stored in replicas
  // Sequences here that are to have one, by how far it is: with the whole prompt, without it, not there.
  uint64_t replicas_fed = 0, replicas_copying = 0, replicas_missing = 0;
  uint64_t replica_lag_tokens = 0;  // positions that the replicas of all of them lack
  uint64_t replica_sent_bytes = 0;
  uint64_t replica_updates_fenced = 0;              // of sequences that go on here, from whoever fed them before
  uint64_t replicas_refused = 0;                    // openings that another cache rank has refused
  uint64_t damaged_sequences = 0;                   // given up, because a stored row of theirs was not what was written
  uint64_t scrubbed_bytes = 0;                      // of blocks that were read to find damage
  uint64_t scrub_passes = 0;                        // over all that is stored
  uint64_t scrub_damaged_rows = 0;                  // found so; one per block
  uint64_t mended_index_blocks = 0;                 // of which the index was not what the rows give
  uint64_t damaged_copies = 0;                      // of blocks in the fast tier, of which the rows were read again
  uint64_t queued_frames = 0;                       // outgoing, waiting for window
  std::vector<CapturedMassSnapshot> captured_mass;  // by layer
  std::vector<CapturedMassSnapshot> corrected_mass;  // by layer, of verified heads, with what was added
};

// One number that a single thread writes and any thread reads.
template <typename T>
class Counter {
 public:
  void Add(T n) { value_.store(value_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed); }
  void Set(T n) { value_.store(n, std::memory_order_relaxed); }
  T get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<T> value_{};
};

struct CacheRankMetrics {
  Counter<uint64_t> selection_lookups, selection_hits, local_rows, streamed_rows, streamed_bytes, prefetched_rows,
      prefetched_bytes, prefetch_hits, prefetches, refilled_bytes, appended_rows, selections, scored_key_bytes,
      scored_page_bytes, shared_key_bytes, projections, verifications, missed_top_k, widened, mass_bounds,
      budget_growths, correction_rows, plans, frames_received, frames_malformed, stale_epoch_rejected, rows_refused,
      transfers_failed, sequences_opened, sequences_attached, sequences_forked, sequences_expired, admissions_refused,
      active_sequences, detached_sequences, sharded_sequences, channels, blocks_used, blocks_reserved, blocks_total,
      block_bytes, queued_frames, prefix_hits, prefix_lookup_tokens, prefix_cached_tokens, prefix_evictions,
      prefix_blocks, prefix_idle_blocks, fast_bytes, fast_staging_bytes, fast_index_bytes, fast_reserved_bytes,
      fast_copied_bytes, tier_blocks_loaded, tier_blocks_evicted, tier_hit_rows, tier_missed_rows, tier_loaded_rows,
      tier_gathers, tier_scattered_rows, tier_scatters, copy_device_bytes, copy_device_used_bytes, copy_host_bytes,
      copy_host_used_bytes, peer_links, peer_plans, peer_batch_rows, peer_batch_rows_refused, prefix_queries,
      prefix_pieces, state_snapshots, damaged_sequences, scrubbed_bytes, scrub_passes, scrub_damaged_rows,
      mended_index_blocks, damaged_copies, replicas, replicas_promoted, replica_received_bytes, replicas_fed,
      replicas_copying, replicas_missing, replica_lag_tokens, replica_sent_bytes, replica_updates_fenced,
      replicas_refused;
  Counter<double> selection_seconds, tier_gather_seconds, tier_scatter_seconds, prefix_attention_seconds;

  static constexpr size_t kMaxLayers = 256;
  struct Mass {
    std::array<Counter<uint64_t>, kCapturedMassBounds.size()> buckets;
    Counter<double> sum;
  };
  // By layer; layers from kMaxLayers on are counted in the last.
  std::array<Mass, kMaxLayers> captured_mass, corrected_mass;
  Counter<uint64_t> num_layers;
  Timeline timeline;  // of the data-plane thread

  void ObserveCapturedMass(size_t layer, float mass, bool is_bound) {
    Observe(captured_mass, layer, mass);
    mass_bounds.Add(is_bound);
  }
  void ObserveVerification(size_t layer, const HeadPartial& verification, bool grew);
  CacheRankSnapshot Snapshot() const;

 private:
  std::vector<CapturedMassSnapshot> SnapshotOf(const std::array<Mass, kMaxLayers>& histograms) const;
  static void Observe(std::array<Mass, kMaxLayers>& histograms, size_t layer, float mass);
};

}  // namespace winnow
