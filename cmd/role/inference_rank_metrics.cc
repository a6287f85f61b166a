#include "cmd/role/inference_rank_metrics.h"

#include <string>
#include <utility>

namespace winnow {

void WriteMetrics(const InferenceRankMetrics& metrics, FamilyWriter& writer) {
  auto with = [](const char* key, std::string value) { return MetricLabels{{key, std::move(value)}}; };
  auto counter = [&](const char* name, const char* help, double value) { writer.Counter(name, help, value); };
  auto gauge = [&](const char* name, const char* help, double value) { writer.Gauge(name, help, value); };

  gauge("winnow_num_requests_running", "Sequences that are being prefilled or decoded.", metrics.running_sequences);
  gauge("winnow_num_requests_waiting", "Sequences that wait for a place.", metrics.waiting_sequences);
  gauge("winnow_queued_prompt_tokens", "Prompt tokens that are still to be computed, waiting sequences included.",
        metrics.queued_prompt_tokens);
  gauge("winnow_working_set_rows", "KV rows that running sequences may hold resident, over all layers and kv heads.",
        metrics.working_set_rows);
  gauge("winnow_parked_sequences", "Sequences that decode, but take no steps, because fast memory is full.",
        metrics.parked_sequences);
  gauge("winnow_fast_working_set_bytes",
        "Rows that the last selections of the sequences that take steps read on their cache ranks.",
        metrics.fast_working_set_bytes);
  gauge("winnow_prefill_kv_bytes", "KV of prompts in prefill, layer by layer their residuals, too; 0 between prompts.",
        metrics.prefill_kv_bytes);
  writer.Gauge("winnow_slot_pages", "Pages of 64 row slots.", metrics.slot_pages_used, with("state", "used"));
  writer.Gauge("winnow_slot_pages", "Pages of 64 row slots.",
               static_cast<double>(metrics.slot_pages_total) - static_cast<double>(metrics.slot_pages_used),
               with("state", "free"));
  const auto host_pages = [&](const char* state, double pages) {
    writer.Gauge("winnow_host_slot_pages",
                 "Of winnow_slot_pages, those in pinned host memory behind the GPU's (--slot-host-memory).", pages,
                 with("state", state));
  };
  host_pages("used", metrics.host_slot_pages_used);
  host_pages("free",
             static_cast<double>(metrics.host_slot_pages_total) - static_cast<double>(metrics.host_slot_pages_used));
  counter("winnow_rank_prompt_tokens_total", "Prompt tokens computed.", metrics.prompt_tokens);
  counter("winnow_rank_cached_prompt_tokens_total", "Prompt tokens that came from prefix caches and were not computed.",
          metrics.cached_prompt_tokens);
  counter("winnow_rank_kept_prompt_tokens_total",
          "Prompt tokens that a rank had computed which was lost, and that were not computed again.",
          metrics.kept_prompt_tokens);
  counter("winnow_rank_state_snapshots_total", "States of sequences of hybrid models that were sent to cache ranks.",
          metrics.state_snapshots);
  counter("winnow_rank_state_snapshot_bytes_total", "Bytes of these states.", metrics.state_snapshot_bytes);
  const auto of_prefixes = [&](const char* way, double prompts, double bytes) {
    writer.Counter("winnow_prefix_attention_prompts_total",
                   "Prompts with a cached prefix, by how they attend to it (--prefix-attention).", prompts,
                   with("way", way));
    writer.Counter(
        "winnow_prefix_attention_bytes_total",
        "What travelled so that prompts attend to cached prefixes: rows, or queries, states and what decoding keeps.",
        bytes, with("way", way));
  };
  of_prefixes("stream-back", metrics.stream_back_prompts, metrics.stream_back_bytes);
  of_prefixes("remote", metrics.remote_prefix_prompts, metrics.remote_prefix_bytes);
  counter("winnow_resident_prefix_hits_total", "Sequences that found their first rows in the slots of the rank's GPU.",
          metrics.resident_prefix_hits);
  counter("winnow_resident_prefix_tokens_total", "Positions of theirs whose rows were taken from there.",
          metrics.resident_prefix_tokens);
  gauge("winnow_resident_prefix_bytes", "Rows of prompts that lie in slots for whoever begins with them.",
        metrics.resident_prefix_bytes);
  counter("winnow_resident_prefix_evicted_tokens_total", "Positions whose rows made room in the slots for others.",
          metrics.resident_prefix_evicted_tokens);
  counter("winnow_rank_generation_tokens_total", "Tokens sampled.", metrics.generation_tokens);
  counter("winnow_decode_steps_total", "Decode steps of the batch.", metrics.decode_steps);
  counter("winnow_local_steps_total",
          "Decode steps over KV in the rank's own GPU, launched before the tokens of the step before had come.",
          metrics.local_steps);
  counter("winnow_local_steps_beside_prompts_total",
          "Decode steps over KV in the rank's own GPU that were launched while a prompt was computed there, too.",
          metrics.local_steps_beside_prompts);
  gauge("winnow_local_sequences", "Sequences that decode on the rank's own GPU, which has all of their rows.",
        metrics.local_sequences);
  counter("winnow_local_rows_dropped_total", "Rows of steps on the rank's own GPU whose sequence had ended meanwhile.",
          metrics.local_rows_dropped);
  counter("winnow_local_step_wait_seconds_total",
          "Time that the engine has waited for steps on the rank's own GPU: next to none where the host holds them up.",
          1e-6 * static_cast<double>(metrics.local_step_wait_us));
  counter("winnow_peer_steps_total", "Decode steps that ran from GPU to GPU (p2p).", metrics.peer_steps);
  gauge("winnow_peer_sequences", "Sequences that decode from GPU to GPU.", metrics.peer_sequences);
  counter("winnow_pushed_prompt_rows_total", "KV rows of prompts pushed from GPU to GPU, one per layer and kv head.",
          metrics.pushed_prompt_rows);
  counter("winnow_peer_links_failed_total", "Peer links that have broken; their links go by frames since.",
          metrics.peer_links_failed);
  counter("winnow_prefill_chunks_total", "Prompt chunks computed.", metrics.prefill_chunks);
  counter("winnow_injected_tokens_total", "Prompt tokens computed in iterations that decoded, too.",
          metrics.injected_tokens);
  gauge(
      "winnow_max_inject_tokens",
      "Prompt tokens that the next iteration may compute beside decode rows; 0 where nothing fits into --tpot-target.",
      metrics.max_inject_tokens);
  counter("winnow_selection_lookups_total", "Selected rows that were looked up among the resident ones.",
          metrics.selection_lookups);
  counter("winnow_selection_hits_total", "Selected rows that were resident already.", metrics.selection_hits);
  counter("winnow_kv_stream_rows_total", "KV rows that came from cache ranks because a step waited for them.",
          metrics.streamed_rows);
  counter("winnow_prefetched_rows_total", "KV rows that came from cache ranks ahead of any selection.",
          metrics.prefetched_rows);
  writer.Counter("winnow_kv_stream_bytes_total", "Bytes on the data plane, as this process sees them.",
                 metrics.kv_sent_bytes, with("direction", "sent"));
  writer.Counter("winnow_kv_stream_bytes_total", "Bytes on the data plane, as this process sees them.",
                 metrics.kv_received_bytes, with("direction", "received"));
  counter("winnow_delta_wait_seconds_total", "Time that decode steps have waited for selected rows.",
          1e-6 * static_cast<double>(metrics.delta_wait_us));
  counter("winnow_verification_wait_seconds_total",
          "Time that decode steps have waited for verifications, after attention.",
          1e-6 * static_cast<double>(metrics.partial_wait_us));
  const auto sequences = [&](const char* outcome, double value) {
    writer.Counter(
        "winnow_rank_sequences_total",
        "Sequences by what became of them; reattached ones were handed over or had lost a rank, forked ones began with "
        "the KV of another.",
        value, with("outcome", outcome));
  };
  sequences("reattached", metrics.reattached_sequences);
  sequences("preempted", metrics.preempted_sequences);
  sequences("resumed", metrics.resumed_sequences);
  sequences("forked", metrics.forked_sequences);
  sequences("failed", metrics.failed_sequences);
  sequences("fenced", metrics.fenced_sequences);
  sequences("handed-over", metrics.handed_over_sequences);
  gauge("winnow_rank_failing",
        "1 while every attempt at a request fails on the rank, which is NOT_SERVING then; else 0.", metrics.failing);
  gauge("winnow_held_requests",
        "Resumable requests that nobody listens to, or that have ended, and that may still be resumed.",
        metrics.held_requests);
  counter("winnow_resumed_requests_total", "Outputs of resumable requests that a router has taken over.",
          metrics.resumed_requests);
  counter("winnow_expired_requests_total", "Outputs of resumable requests that were given up while nobody listened.",
          metrics.expired_requests);
  counter("winnow_layered_prompts_total", "Prompts that were prefilled layer by layer.", metrics.layered_prompts);
  gauge("winnow_layered_kv_peak_bytes", "One layer's KV of the longest prompt that was prefilled layer by layer.",
        metrics.layered_kv_peak_bytes);
  gauge("winnow_layered_residual_peak_bytes", "Residuals of the longest prompt that was prefilled layer by layer.",
        metrics.layered_residual_peak_bytes);
  counter("winnow_forked_tokens_total", "Positions that sequences had from the ones they fork, and did not compute.",
          metrics.forked_tokens);
  counter("winnow_grammars_compiled_total", "Grammars of constrained outputs that were compiled.",
          metrics.grammars_compiled);
  counter("winnow_grammars_reused_total", "Constrained outputs whose grammar had been compiled before.",
          metrics.grammars_reused);
  counter("winnow_grammar_compile_seconds_total", "Time spent compiling grammars, beside the engine.",
          1e-6 * static_cast<double>(metrics.grammar_compile_us));
  writer.Histogram(
      "winnow_token_filter_seconds",
      "Engine time per token spent on finding out which tokens may follow: grammars, allowed tokens, bad words.",
      metrics.token_filter_seconds);
  writer.Histogram("winnow_request_queue_time_seconds",
                   "From the arrival of a prompt at the rank to its admission there.", metrics.queue_seconds);
  writer.Histogram("winnow_request_prefill_time_seconds", "From the admission of a prompt to its first token.",
                   metrics.prefill_seconds);
  counter("winnow_stale_epoch_rejected_total", "Frames of an attachment that is over: expected after failovers.",
          metrics.stale_frames);
  counter("winnow_kv_integrity_failures_total",
          "Frames that broke the protocol or their checksum: alert on any increase.", metrics.malformed_frames);
  counter("winnow_progress_total", "Grows while the rank does work.", metrics.progress);
  gauge("winnow_last_progress_timestamp_seconds", "When the rank last did work, seconds since 1970.",
        metrics.last_progress_unix_seconds);
  counter("winnow_captured_mass_bounds_total",
          "Masses in winnow_captured_attention_mass that are lower bounds, because not every key was scored.",
          metrics.mass_bounds);
  for (size_t layer = 0; layer < metrics.captured_mass.size(); ++layer) {
    writer.Histogram("winnow_captured_attention_mass",
                     "Share of the softmax that the attended rows hold, per position and head, before correction.",
                     metrics.captured_mass[layer], with("layer", std::to_string(layer)));
  }
}

}  // namespace winnow
