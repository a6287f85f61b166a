#include "cmd/role/cache_rank_metrics.h"

#include <algorithm>
#include <string>
#include <vector>

namespace winnow {
namespace {

double Count(uint64_t value) {
  return static_cast<double>(value);
}

void WriteSequences(const CacheRankSnapshot& s, FamilyWriter& writer) {
  const char* sequences =
      "Sequences whose KV is held: active for an inference rank, or detached, waiting for one after a loss.";
  writer.Gauge("winnow_sequences", sequences, Count(s.active_sequences), {{"state", "active"}});
  writer.Gauge("winnow_sequences", sequences, Count(s.detached_sequences), {{"state", "detached"}});
  writer.Gauge("winnow_cache_shards", "Sequences of which this cache rank holds a part and others the rest.",
               Count(s.sharded_sequences));
  const char* events = "What happened to sequences.";
  writer.Counter("winnow_sequence_events_total", events, Count(s.sequences_opened), {{"event", "opened"}});
  writer.Counter("winnow_sequence_events_total", events, Count(s.sequences_attached), {{"event", "attached"}});
  writer.Counter("winnow_sequence_events_total", events, Count(s.sequences_forked), {{"event", "forked"}});
  writer.Counter("winnow_sequence_events_total", events, Count(s.sequences_expired), {{"event", "expired"}});
  writer.Counter("winnow_admissions_refused_total", "Sequences that were refused for want of memory.",
                 Count(s.admissions_refused));
}

void WriteReplicas(const CacheRankSnapshot& s, FamilyWriter& writer) {
  writer.Gauge("winnow_replicas", "Replicas here of sequences that other cache ranks hold.", Count(s.replicas));
  writer.Counter("winnow_replicas_promoted_total",
                 "Replicas that an inference rank has attached to, because the cache rank that fed them was lost.",
                 Count(s.replicas_promoted));
  writer.Counter("winnow_replica_received_bytes_total", "Rows that came for replicas.",
                 Count(s.replica_received_bytes));
  writer.Counter("winnow_replica_sent_bytes_total", "Rows that went to replicas on other cache ranks.",
                 Count(s.replica_sent_bytes));
  const char* sequences =
      "Sequences held here that are to have a replica: fed, it has the whole prompt; copying, not yet; missing, it is "
      "not there. One that is fed can take over without its prompt being computed again.";
  writer.Gauge("winnow_replicated_sequences", sequences, Count(s.replicas_fed), {{"replica", "fed"}});
  writer.Gauge("winnow_replicated_sequences", sequences, Count(s.replicas_copying), {{"replica", "copying"}});
  writer.Gauge("winnow_replicated_sequences", sequences, Count(s.replicas_missing), {{"replica", "missing"}});
  writer.Gauge("winnow_replica_lag_tokens", "Positions stored here that replicas lack, over all sequences.",
               Count(s.replica_lag_tokens));
  writer.Counter("winnow_replica_fenced_updates_total",
                 "What came for sequences that had been taken over here, from a cache rank that did not know it yet: "
                 "refused.",
                 Count(s.replica_updates_fenced));
  writer.Counter("winnow_replicas_refused_total",
                 "Replicas that another cache rank has refused, for want of memory most of all; they are tried again.",
                 Count(s.replicas_refused));
}

void WriteBlocks(const CacheRankSnapshot& s, FamilyWriter& writer) {
  const char* blocks =
      "Blocks of 32 rows: used by sequences, promised to them, or free (kept prompts that none uses included).";
  const uint64_t taken = s.blocks_used + s.blocks_reserved;
  writer.Gauge("winnow_kv_blocks", blocks, Count(s.blocks_used), {{"state", "used"}});
  writer.Gauge("winnow_kv_blocks", blocks, Count(s.blocks_reserved), {{"state", "reserved"}});
  writer.Gauge("winnow_kv_blocks", blocks, Count(s.blocks_total > taken ? s.blocks_total - taken : 0),
               {{"state", "free"}});
  writer.Gauge("winnow_kv_block_bytes", "Size of a block.", Count(s.block_bytes));
  writer.Counter("winnow_state_snapshots_total",
                 "States of sequences of hybrid models that were stored; they lie in blocks.",
                 Count(s.state_snapshots));
}

void WritePrefixes(const CacheRankSnapshot& s, FamilyWriter& writer) {
  writer.Gauge("winnow_prefix_cache_blocks", "Blocks of 32 rows of kept prompts, by whether a sequence uses them.",
               Count(s.prefix_blocks - std::min(s.prefix_blocks, s.prefix_idle_blocks)), {{"state", "used"}});
  writer.Gauge("winnow_prefix_cache_blocks", "Blocks of 32 rows of kept prompts, by whether a sequence uses them.",
               Count(s.prefix_idle_blocks), {{"state", "idle"}});
  writer.Gauge("winnow_prefix_cache_bytes", "Memory of kept prompts.", Count(s.prefix_blocks * s.block_bytes));
  writer.Counter("winnow_prefix_cache_hits_total", "Sequences that began with cached positions.", Count(s.prefix_hits));
  writer.Counter("winnow_prefix_cache_lookup_tokens_total", "Prompt tokens that were looked up in the prefix cache.",
                 Count(s.prefix_lookup_tokens));
  writer.Counter("winnow_prefix_cache_hit_tokens_total", "Prompt tokens that were found in the prefix cache.",
                 Count(s.prefix_cached_tokens));
  writer.Counter("winnow_prefix_cache_evictions_total",
                 "Units of 32 positions of kept prompts that gave way to others.", Count(s.prefix_evictions));
  writer.Counter("winnow_prefix_attention_queries_total",
                 "Queries of prompts that attended to a cached prefix here, one per position and layer.",
                 Count(s.prefix_queries));
  writer.Counter("winnow_prefix_attention_pieces_total",
                 "Pieces in which prompts attended to cached prefixes here; selections go on between them.",
                 Count(s.prefix_pieces));
  writer.Counter("winnow_prefix_attention_seconds_total", "Time of attention to cached prefixes here.",
                 s.prefix_attention_seconds);
}

// Of a rank with two tiers.
void WriteTiers(const CacheRankSnapshot& s, FamilyWriter& writer) {
  const char* capacity = "Memory for KV, by tier.";
  const uint64_t large_used = (s.blocks_used + s.prefix_idle_blocks) * s.block_bytes;
  writer.Gauge("winnow_tier_capacity_bytes", capacity, Count(s.fast_bytes), {{"tier", "fast"}});
  writer.Gauge("winnow_tier_capacity_bytes", capacity, Count(s.blocks_total * s.block_bytes), {{"tier", "large"}});
  const char* used =
      "Memory in use, by tier: index, that promised for index, copies of rows and rows on their way in the fast one, "
      "all rows in the large one.";
  const auto gauge = [&](const char* tier, const char* kind, uint64_t bytes) {
    writer.Gauge("winnow_tier_used_bytes", used, Count(bytes), {{"tier", tier}, {"kind", kind}});
  };
  gauge("fast", "index", s.fast_index_bytes);
  gauge("fast", "reserved", s.fast_reserved_bytes);
  gauge("fast", "rows", s.fast_copied_bytes);
  gauge("fast", "staging", s.fast_staging_bytes);
  gauge("large", "rows", large_used);
  const char* reads = "KV rows read, by whether copies in the fast tier had them.";
  writer.Counter("winnow_tier_read_rows_total", reads, Count(s.tier_hit_rows), {{"result", "hit"}});
  writer.Counter("winnow_tier_read_rows_total", reads, Count(s.tier_missed_rows), {{"result", "miss"}});
  writer.Counter("winnow_tier_loaded_rows_total", "KV rows read from the large tier, whole blocks included.",
                 Count(s.tier_loaded_rows));
  writer.Counter("winnow_tier_gathers_total", "Reads in which the fast tier lacked a row.", Count(s.tier_gathers));
  writer.Counter("winnow_tier_gather_seconds_total", "Time of reads in which the fast tier lacked a row.",
                 s.tier_gather_seconds);
  const char* blocks = "Blocks copied to the fast tier, and copies that made room.";
  writer.Counter("winnow_tier_blocks_total", blocks, Count(s.tier_blocks_loaded), {{"event", "loaded"}});
  writer.Counter("winnow_tier_blocks_total", blocks, Count(s.tier_blocks_evicted), {{"event", "evicted"}});
  writer.Counter("winnow_tier_written_rows_total", "KV rows written to the large tier.", Count(s.tier_scattered_rows));
  writer.Counter("winnow_tier_writes_total", "Scatters that wrote rows to the large tier.", Count(s.tier_scatters));
  writer.Counter("winnow_tier_write_seconds_total", "Time of writing rows to the large tier.", s.tier_scatter_seconds);
}

// Of a rank that has a peer link.
void WriteCopies(const CacheRankSnapshot& s, FamilyWriter& writer) {
  const auto gauge = [&](const char* name, const char* help, const char* tier, uint64_t bytes) {
    writer.Gauge(name, help, Count(bytes), {{"tier", tier}});
  };
  const char* capacity = "Memory for rows that peer links push, by where it lies: the GPU's, or pinned host memory.";
  gauge("winnow_peer_copy_capacity_bytes", capacity, "device", s.copy_device_bytes);
  gauge("winnow_peer_copy_capacity_bytes", capacity, "host", s.copy_host_bytes);
  const char* used = "Of the memory for rows that peer links push, what sequences have taken.";
  gauge("winnow_peer_copy_used_bytes", used, "device", s.copy_device_used_bytes);
  gauge("winnow_peer_copy_used_bytes", used, "host", s.copy_host_used_bytes);
}

// What frames and plans brought, and what of it was wrong.
void WriteDataPlane(const CacheRankSnapshot& s, FamilyWriter& writer) {
  writer.Gauge("winnow_channels", "Open data-plane channels.", Count(s.channels));
  writer.Gauge("winnow_queued_frames", "Outgoing frames that wait for the peer's window.", Count(s.queued_frames));
  writer.Counter("winnow_plans_total", "Plans of steps received, and rows of steps that needed none.", Count(s.plans));
  writer.Counter("winnow_appended_rows_total", "KV rows received and stored, one per layer and kv head.",
                 Count(s.appended_rows));
  writer.Counter("winnow_frames_received_total", "Data-plane frames received.", Count(s.frames_received));
  writer.Counter("winnow_kv_integrity_failures_total",
                 "Frames that broke the protocol or their checksum: alert on any increase.", Count(s.frames_malformed));
  writer.Counter("winnow_stale_epoch_rejected_total",
                 "Rows and frames of an attachment that is over: expected after failovers.",
                 Count(s.stale_epoch_rejected));
  writer.Counter("winnow_rows_refused_total", "Plan rows that broke the protocol.", Count(s.rows_refused));
  writer.Counter("winnow_transfers_failed_total", "Deltas that could not be sent.", Count(s.transfers_failed));
}

// Of what is stored.
void WriteDamage(const CacheRankSnapshot& s, FamilyWriter& writer) {
  writer.Counter("winnow_damaged_sequences_total",
                 "Sequences given up, to be computed anew, because a stored row was not what was written: alert on any "
                 "increase.",
                 Count(s.damaged_sequences));
  const char* found = "What the scrub found damaged: blocks of rows, and blocks of index, which it put right.";
  writer.Counter("winnow_scrub_damage_total", found, Count(s.scrub_damaged_rows), {{"part", "rows"}});
  writer.Counter("winnow_scrub_damage_total", found, Count(s.mended_index_blocks), {{"part", "index"}});
  writer.Counter("winnow_scrubbed_bytes_total", "Bytes of stored rows and index that the scrub has read.",
                 Count(s.scrubbed_bytes));
  writer.Counter("winnow_scrub_passes_total", "Passes of the scrub over all that is stored.", Count(s.scrub_passes));
  if (s.fast_bytes == 0) return;
  writer.Counter("winnow_tier_damaged_copies_total",
                 "Copies in the fast tier of which a row was damaged; the large tier was read again.",
                 Count(s.damaged_copies));
}

void WritePeerLinks(const CacheRankSnapshot& s, FamilyWriter& writer) {
  writer.Gauge("winnow_peer_links", "Links whose decode steps can run from GPU to GPU (p2p).", Count(s.peer_links));
  writer.Counter("winnow_peer_plans_total", "Step plans that ran from GPU to GPU.", Count(s.peer_plans));
  if (s.copy_device_bytes + s.copy_host_bytes > 0) WriteCopies(s, writer);
  const char* batch_rows = "Sequences that asked to decode from GPU to GPU; refused ones go by frames.";
  writer.Counter("winnow_peer_batch_rows_total", batch_rows, Count(s.peer_batch_rows), {{"outcome", "granted"}});
  writer.Counter("winnow_peer_batch_rows_total", batch_rows, Count(s.peer_batch_rows_refused),
                 {{"outcome", "refused"}});
}

void WriteSelections(const CacheRankSnapshot& s, FamilyWriter& writer) {
  writer.Counter("winnow_selection_lookups_total", "Selected rows that were looked up among the resident ones.",
                 Count(s.selection_lookups));
  writer.Counter("winnow_selection_hits_total", "Selected rows that were resident already.", Count(s.selection_hits));
  writer.Counter("winnow_kv_stream_rows_total", "KV rows sent because they were selected and not resident.",
                 Count(s.streamed_rows));
  const char* bytes = "Bytes of KV rows on the data plane, as this process sees them.";
  writer.Counter("winnow_kv_stream_bytes_total", bytes, Count(s.streamed_bytes), {{"direction", "sent"}});
  writer.Counter("winnow_kv_stream_bytes_total", bytes, Count(s.refilled_bytes), {{"direction", "refilled"}});
  writer.Counter("winnow_kv_stream_bytes_total", bytes, Count(s.prefetched_bytes), {{"direction", "prefetched"}});
  writer.Counter("winnow_prefetched_rows_total", "KV rows sent ahead of any selection.", Count(s.prefetched_rows));
  writer.Counter("winnow_prefetch_hits_total",
                 "Rows sent ahead that were selected while they were resident; part of winnow_selection_hits_total.",
                 Count(s.prefetch_hits));
  writer.Counter("winnow_prefetches_total", "Predictions made to send rows ahead, one per position and layer.",
                 Count(s.prefetches));
  writer.Counter("winnow_selections_total", "Selections made, one per position and layer.", Count(s.selections));
  writer.Counter("winnow_selection_seconds_total", "Time spent on selections.", s.selection_seconds);
  writer.Counter("winnow_scored_key_bytes_total",
                 "Bytes of keys and page bounds that selections and their measurement read.",
                 Count(s.scored_key_bytes));
  writer.Counter("winnow_scored_page_bytes_total",
                 "Of winnow_scored_key_bytes_total, bounds and cuboid-means of pages.", Count(s.scored_page_bytes));
  writer.Counter("winnow_shared_key_bytes_total",
                 "Bytes of keys that selections did without reading, because samples of the same step share them.",
                 Count(s.shared_key_bytes));
  writer.Counter("winnow_query_projections_total", "Queries computed here from residuals, one per position and layer.",
                 Count(s.projections));
}

// What the quality guard and remote correction did.
void WriteVerifications(const CacheRankSnapshot& s, FamilyWriter& writer) {
  const char* escalations =
      "What the quality guard and remote correction did: heads corrected by rows of the top-k that were not selected, "
      "widened by more rows than those, and heads whose budget was doubled.";
  writer.Counter("winnow_selection_escalations_total", escalations, Count(s.missed_top_k),
                 {{"action", "missed_top_k"}});
  writer.Counter("winnow_selection_escalations_total", escalations, Count(s.widened), {{"action", "widened"}});
  writer.Counter("winnow_selection_escalations_total", escalations, Count(s.budget_growths),
                 {{"action", "budget_growth"}});
  writer.Counter("winnow_selection_verified_heads_total", "Heads verified with their real query.",
                 Count(s.verifications));
  writer.Counter("winnow_correction_rows_total", "KV rows read here to correct attention.", Count(s.correction_rows));
}

void WriteMasses(const CacheRankSnapshot& s, FamilyWriter& writer) {
  const std::vector<double> bounds(kCapturedMassBounds.begin(), kCapturedMassBounds.end());
  const auto histograms = [&](const char* name, const char* help, const std::vector<CapturedMassSnapshot>& masses) {
    for (size_t layer = 0; layer < masses.size(); ++layer) {
      std::vector<uint64_t> counts(masses[layer].buckets.begin(), masses[layer].buckets.end());
      counts.push_back(0);  // no share exceeds 1
      writer.Histogram(name, help, bounds, counts, masses[layer].sum, {{"layer", std::to_string(layer)}});
    }
  };
  histograms("winnow_captured_attention_mass",
             "Share of the softmax that the attended rows hold, per position and head, before correction.",
             s.captured_mass);
  writer.Counter("winnow_captured_mass_bounds_total",
                 "Masses in winnow_captured_attention_mass that are lower bounds, because not every key was scored.",
                 Count(s.mass_bounds));
  histograms("winnow_corrected_attention_mass",
             "Share of the softmax that attended rows hold with what correction added, of sequences that wait for "
             "verifications.",
             s.corrected_mass);
}

}  // namespace

void WriteMetrics(const CacheRankSnapshot& snapshot, FamilyWriter& writer) {
  WriteSequences(snapshot, writer);
  WriteReplicas(snapshot, writer);
  WriteBlocks(snapshot, writer);
  WritePrefixes(snapshot, writer);
  if (snapshot.fast_bytes > 0) WriteTiers(snapshot, writer);
  WriteDataPlane(snapshot, writer);
  WriteDamage(snapshot, writer);
  WritePeerLinks(snapshot, writer);
  WriteSelections(snapshot, writer);
  WriteVerifications(snapshot, writer);
  WriteMasses(snapshot, writer);
}

}  // namespace winnow
