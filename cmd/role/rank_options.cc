#include "cmd/role/rank_options.h"

#include "cmd/role/machine.h"

namespace winnow {

absl::StatusOr<InferenceRankOptions> RankOptionsOf(const InferenceProcessOptions& options) {
  InferenceRankOptions rank;
  rank.model_dir = options.model;
  rank.compute_dtype = options.compute;
  rank.kv_dtype = options.kv_dtype;
  rank.device = options.device;
  rank.tensor_parallel = options.tensor_parallel;
  rank.isa = options.isa;
  rank.num_threads = ResolveThreads(options.threads);
  rank.max_context_tokens = options.max_context;
  rank.max_running = options.max_running;
  rank.prefill_chunk_tokens = options.prefill.chunk;
  rank.prefill_mode = options.prefill.mode;
  rank.prefix_attention = options.prefill.prefix_attention;
  rank.keep_prefixes = options.prefill.keep_prefixes;
  rank.scheduling = options.scheduling;
  rank.resume.grace = std::chrono::duration_cast<std::chrono::milliseconds>(options.resume_grace);
  rank.slot_memory_bytes = static_cast<size_t>(options.slot_memory_bytes);
  rank.slot_host_memory_bytes = static_cast<size_t>(options.slot_host_memory_bytes);
  rank.prefill_memory_bytes = static_cast<size_t>(options.prefill.memory_bytes);
  WINNOW_ASSIGN_OR_RETURN(rank.selection, options.selection.Resolve(options.model));
  rank.head_profile = options.selection.head_profile;
  rank.offers_peer_links = options.transport == TransportKind::kAuto || options.transport == TransportKind::kP2p;
  if (options.select_in_place != SelectInPlace::kAuto) {
    rank.selects_in_place = options.select_in_place == SelectInPlace::kOn;
  }
  return rank;
}

}  // namespace winnow
