#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <deque>

#include "common/metrics/atomic_histogram.h"
#include "common/timeline/timeline.h"

namespace winnow {

// Counters of an inference rank: written by its threads, read by whoever serves /metrics.
struct InferenceRankMetrics {
  // Upper bounds of histogram buckets; one more bucket is everything above. Times are in seconds.
  static constexpr std::array<double, 9> kMassBounds = {0.5, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.98, 0.99};
  static constexpr std::array<double, 8> kTokenFilterBounds = {1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 1e-1};
  // Of waiting and of prompts: a prompt of 128k tokens takes minutes on CPUs.
  static constexpr std::array<double, 17> kWaitBounds = {.001, .0025, .005, .01, .025, .05, .1,  .25, .5,
                                                         1,    2.5,   5,    10,  25,   50,  100, 250};

  explicit InferenceRankMetrics(int num_layers) {
    for (int layer = 0; layer < num_layers; ++layer) captured_mass.emplace_back(kMassBounds);
  }

  std::atomic<uint64_t> prompt_tokens{0};
  std::atomic<uint64_t> cached_prompt_tokens{0};  // that came from prefix caches; not among prompt_tokens
  std::atomic<uint64_t> kept_prompt_tokens{0};    // of prompts that others had begun; not among prompt_tokens
  // Prompts with a cached prefix, and what travelled of it, by way (PrefixAttention): rows, or queries, states and
  // rows.
  std::atomic<uint64_t> stream_back_prompts{0}, stream_back_bytes{0};
  std::atomic<uint64_t> remote_prefix_prompts{0}, remote_prefix_bytes{0};
  // Sequences that found their first rows in slots, positions of these, what is kept there, and what has been evicted.
  std::atomic<uint64_t> resident_prefix_hits{0}, resident_prefix_tokens{0};
  std::atomic<uint64_t> resident_prefix_bytes{0}, resident_prefix_evicted_tokens{0};
  std::atomic<uint64_t> generation_tokens{0};
  std::atomic<uint64_t> decode_steps{0};
  std::atomic<uint64_t> local_steps{0};                 // of decode_steps, those that ran ahead of the host (StepLoop)
  std::atomic<uint64_t> local_sequences{0};             // that have a row of their batch
  std::atomic<uint64_t> local_rows_dropped{0};          // computed for sequences that had ended meanwhile
  std::atomic<uint64_t> local_steps_beside_prompts{0};  // launched while a prompt was computed
  std::atomic<uint64_t> local_step_wait_us{0};          // engine time spent waiting for them
  std::atomic<uint64_t> peer_steps{0};                  // of decode_steps, those that ran between two GPUs
  std::atomic<uint64_t> peer_sequences{0};              // that have a batch row
  std::atomic<uint64_t> peer_links_failed{0};
  std::atomic<uint64_t> pushed_prompt_rows{0};                        // to cache ranks' GPUs; one per layer and kv head
  std::atomic<uint64_t> state_snapshots{0}, state_snapshot_bytes{0};  // of hybrid models' sequences, sent
  std::atomic<uint64_t> prefill_chunks{0};
  std::atomic<uint64_t> running_sequences{0};
  std::atomic<uint64_t> waiting_sequences{0};
  std::atomic<uint64_t> parked_sequences{0};        // that decode, but take no steps for want of fast memory
  std::atomic<uint64_t> fast_working_set_bytes{0};  // of those that take steps, on their cache ranks
  std::atomic<uint64_t> working_set_rows{
      0};  // rows that running sequences can hold resident, over all layers and kv heads
  std::atomic<uint64_t> slot_pages_used{0};
  std::atomic<uint64_t> slot_pages_total{0};
  std::atomic<uint64_t> host_slot_pages_used{0};  // of these, those in host memory behind a GPU's
  std::atomic<uint64_t> host_slot_pages_total{0};
  std::atomic<uint64_t> prefill_kv_bytes{0};
  std::atomic<uint64_t> layered_prompts{0};              // prefilled layer by layer
  std::atomic<uint64_t> layered_kv_peak_bytes{0};        // of the longest of these: one layer's KV
  std::atomic<uint64_t> layered_residual_peak_bytes{0};  // and the residuals of its tokens
  std::atomic<uint64_t> selection_lookups{0};
  std::atomic<uint64_t> selection_hits{0};
  std::atomic<uint64_t> streamed_rows{0};      // that steps waited for
  std::atomic<uint64_t> prefetched_rows{0};    // that came ahead of any selection
  std::atomic<uint64_t> kv_sent_bytes{0};      // data-plane payload to cache ranks
  std::atomic<uint64_t> kv_received_bytes{0};  // and from them
  std::atomic<uint64_t> delta_wait_us{0};      // engine time spent waiting for deltas
  std::atomic<uint64_t> partial_wait_us{0};    // and for verifications, after attention
  std::atomic<uint64_t> reattached_sequences{0};
  std::atomic<uint64_t> preempted_sequences{0};
  std::atomic<uint64_t> resumed_sequences{0};
  std::atomic<uint64_t> forked_sequences{0};   // that began as forks of others
  std::atomic<uint64_t> forked_tokens{0};      // positions that they have in common with these
  std::atomic<uint64_t> injected_tokens{0};    // prompt tokens computed in iterations that decoded, too
  std::atomic<uint64_t> max_inject_tokens{0};  // of the next iteration
  std::atomic<uint64_t> failed_sequences{0};
  std::atomic<uint64_t> failing{0};  // 1: Engine::usable is an error
  std::atomic<uint64_t> fenced_sequences{0};
  std::atomic<uint64_t> handed_over_sequences{0};
  std::atomic<uint64_t> held_requests{0};     // resumable ones that nobody listens to, or that have ended
  std::atomic<uint64_t> resumed_requests{0};  // that a router has taken over
  std::atomic<uint64_t> expired_requests{0};  // given up before their end, because nobody has
  std::atomic<uint64_t> queued_prompt_tokens{0};
  std::atomic<uint64_t> stale_frames{0};
  std::atomic<uint64_t> malformed_frames{0};
  // Of prompts that were computed here: seconds from their arrival to their admission, and from there to their first
  // token.
  AtomicHistogram queue_seconds{kWaitBounds}, prefill_seconds{kWaitBounds};
  AtomicHistogram token_filter_seconds{kTokenFilterBounds};  // of engine time, finding out which tokens may follow
  std::atomic<uint64_t> grammars_compiled{0}, grammars_reused{0}, grammar_compile_us{0};
  std::atomic<uint64_t> progress{0};
  std::atomic<double> last_progress_unix_seconds{0};
  std::deque<AtomicHistogram> captured_mass;  // [num_layers]
  std::atomic<uint64_t> mass_bounds{0};       // masses among those that are lower bounds
  Timeline timeline;                          // of the engine thread
};

}  // namespace winnow
