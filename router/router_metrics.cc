#include "router/router_metrics.h"

#include <map>
#include <string_view>
#include <utility>

#include "router/membership/rank_list.h"

namespace winnow {

void WriteDispatcherMetrics(const DispatcherCounters& c, FamilyWriter& writer) {
  auto count = [](const std::atomic<uint64_t>& counter) { return static_cast<double>(counter.load()); };
  writer.Gauge("winnow_num_requests_running", "Requests with an attempt under way on an inference rank.",
               static_cast<double>(c.running.load()));
  writer.Gauge("winnow_num_requests_waiting", "Admitted requests that wait for a rank.",
               static_cast<double>(c.waiting.load()));
  writer.Counter("winnow_router_dispatched_total", "Requests admitted to the dispatcher, each sample counted.",
                 count(c.admitted));
  writer.Counter("winnow_router_queue_full_total", "Requests refused because the queue was full.", count(c.rejected));
  const char* failovers = "Attempts that continued a request after the loss of a rank, by what they did with its KV.";
  writer.Counter("winnow_failovers_total", failovers, count(c.failovers_reattach), {{"mode", "reattach"}});
  writer.Counter("winnow_failovers_total", failovers, count(c.failovers_recompute), {{"mode", "recompute"}});
  for (size_t i = 0; i < c.lost_attempts.size(); ++i) {
    writer.Counter("winnow_router_lost_attempts_total",
                   "Attempts at requests that were lost, by how. silent and cache_late are words of somebody slow.",
                   count(c.lost_attempts[i]), {{"reason", kLossNames[i]}});
  }
  writer.Counter("winnow_replica_promotions_total",
                 "Requests that went on with the replica of their KV after the loss of a cache rank.",
                 count(c.promotions));
  writer.Gauge("winnow_requests_without_replica",
               "Running requests whose KV is to have a replica (--replicas=2) and for which no cache rank has room.",
               static_cast<double>(c.without_replica.load()));
  writer.Counter("winnow_hand_overs_total", "Prompts that a rank for prefill has left to a rank that decodes.",
                 count(c.hand_overs));
  writer.Histogram("winnow_hand_over_seconds",
                   "From the end of a prompt on a rank for prefill to the next token, from another rank.",
                   c.hand_over_seconds);
  writer.Counter("winnow_router_moved_requests_total",
                 "Requests that went on from a rank that drains to another one, without a failure.", count(c.moved));
  writer.Histogram("winnow_router_move_seconds",
                   "From the last token of a rank that drains to the first one of the rank that took its request over.",
                   c.move_seconds);
  writer.Counter("winnow_router_tokens_total", "Tokens delivered by inference ranks.", count(c.tokens));
  writer.Counter("winnow_router_cached_prompt_tokens_total", "Prompt tokens that came from prefix caches.",
                 count(c.cached_prompt_tokens));
  writer.Counter("winnow_router_sequences_given_up_total",
                 "Sequences whose requests began anew, or ended between two ranks; cache ranks were told to free them.",
                 count(c.sequences_given_up));
  const auto resumed = [&](const char* mode, const std::atomic<uint64_t>& value) {
    writer.Counter("winnow_router_resumed_outputs_total",
                   "Outputs of answers that clients resumed here, by whether a rank still had them.", count(value),
                   {{"mode", mode}});
  };
  resumed("attach", c.resumed);
  resumed("recompute", c.resumed_recompute);
  writer.Counter("winnow_router_replayed_tokens_total", "Tokens that a later attempt sent again; they are dropped.",
                 count(c.replayed_tokens));
  writer.Counter("winnow_router_mismatched_tokens_total",
                 "Replayed tokens that differ from what was delivered before. Not 0 is a bug, or other numerics.",
                 count(c.mismatched_tokens));
  writer.Counter("winnow_router_not_identical_total",
                 "Requests that continued under other numerics, or in which a repeated token differed.",
                 count(c.not_identical));
}

void WriteMembershipMetrics(const MembershipSnapshot& snapshot, FamilyWriter& writer) {
  uint32_t inference = 0;
  uint32_t cache = 0;
  std::map<std::pair<bool, std::string_view>, int> by_state;
  for (const bool is_cache_rank : {false, true}) {
    for (const char* state : kRankStates) by_state[{is_cache_rank, state}] = 0;
  }
  double free_bytes = 0, total_bytes = 0;
  for (const RankRecord& record : snapshot.ranks) {
    const bool is_cache_rank = record.identity.role() == v1::ROLE_CACHE_RANK;
    ++by_state[{is_cache_rank, StateOf(record)}];
    if (!record.takes_work()) continue;
    ++(is_cache_rank ? cache : inference);
    if (!is_cache_rank) continue;
    free_bytes += static_cast<double>(record.load.free_bytes());
    total_bytes += static_cast<double>(record.load.total_bytes());
  }
  const char* help = "Ranks that are registered and take work.";
  writer.Gauge("winnow_router_ranks", help, inference, {{"kind", "inference"}});
  writer.Gauge("winnow_router_ranks", help, cache, {{"kind", "cache"}});
  for (const auto& [key, ranks] : by_state) {
    writer.Gauge("winnow_router_ranks_by_state",
                 "Ranks that are registered: serving, cordoned or draining by an operator's order, failing whatever "
                 "they are asked for, or unreachable.",
                 ranks, {{"kind", key.first ? "cache" : "inference"}, {"state", std::string(key.second)}});
  }
  const char* kv_bytes = "Memory for KV on the cache ranks that take work, as of their last heartbeats.";
  writer.Gauge("winnow_router_kv_bytes", kv_bytes, free_bytes, {{"state", "free"}});
  writer.Gauge("winnow_router_kv_bytes", kv_bytes, total_bytes - free_bytes, {{"state", "used"}});
  writer.Gauge("winnow_kv_cache_usage_ratio", "Share of the memory for KV on cache ranks that is in use, 0 to 1.",
               total_bytes > 0 ? 1 - free_bytes / total_bytes : 0);
  writer.Gauge("winnow_router_membership_version", "Changes of the table of ranks.",
               static_cast<double>(snapshot.version));
}

}  // namespace winnow
