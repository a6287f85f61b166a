#include "router/routing_policy.h"

#include <algorithm>
#include <tuple>
#include <vector>

namespace winnow {
namespace {

// How far a rank is from what it is there for; 0 is best.
int Misplacement(const RankRecord& record, const RouteNeed& need) {
  const bool for_decode = record.phases == v1::PHASES_DECODE;
  if (need.work == Work::kDecode) return record.phases == v1::PHASES_PREFILL ? 1 : 0;
  if (for_decode) return need.prompt_tokens <= record.decode_prefill_tokens ? 0 : 2;
  return 1;
}

// Sort key: lower is better. Preferred, not avoided, queued prompt tokens, sequences, used bytes.
using Preference = std::tuple<bool, bool, uint64_t, uint64_t, uint64_t>;

Preference PreferenceOf(const RankRecord& record, const AssignedCounts& assigned, const std::optional<RankKey>& prefer,
                        const std::optional<RankKey>& avoid, bool by_prompt_tokens) {
  const RankKey key = KeyOf(record.identity);
  const auto it = assigned.find(key);
  const AssignedWork own = it == assigned.end() ? AssignedWork() : it->second;
  const uint64_t sequences = uint64_t{record.load.running_sequences()} + record.load.waiting_sequences();
  const uint64_t prompt_tokens = std::max<uint64_t>(record.load.queued_prompt_tokens(), own.prompt_tokens);
  return {prefer != key, avoid == key, by_prompt_tokens ? prompt_tokens : 0,
          std::max<uint64_t>(sequences, own.requests), ~record.load.free_bytes()};
}

bool TakesWork(const RankRecord& record) {
  return !record.suspect && !record.load.draining();
}

bool CanReach(const RankRecord& inference, const RankRecord& cache) {
  return cache.hosted_by_rank.empty() || cache.hosted_by_rank == inference.identity.rank();
}

}  // namespace

absl::StatusOr<Route> ChooseRoute(const MembershipSnapshot& snapshot, const AssignedCounts& assigned,
                                  const RouteNeed& need) {
  struct Candidate {
    const RankRecord* record;
    Preference preference;
    int misplacement = 0;
  };
  const bool by_prompt_tokens = need.work == Work::kPrefill &&
                                std::any_of(snapshot.ranks.begin(), snapshot.ranks.end(), [](const RankRecord& record) {
                                  return record.phases == v1::PHASES_PREFILL;
                                });
  std::vector<Candidate> inference_ranks;
  std::vector<Candidate> cache_ranks;
  for (const RankRecord& record : snapshot.ranks) {
    if (record.identity.role() == v1::ROLE_INFERENCE_RANK) {
      if (!TakesWork(record)) continue;
      inference_ranks.push_back(
          {&record, PreferenceOf(record, assigned, need.prefer_inference, need.avoid_inference, by_prompt_tokens),
           Misplacement(record, need)});
    } else if (record.identity.role() == v1::ROLE_CACHE_RANK) {
      if (need.cache ? KeyOf(record.identity) != *need.cache : !TakesWork(record)) continue;
      cache_ranks.push_back({&record, PreferenceOf(record, assigned, need.prefer_cache, need.avoid_cache, false)});
    }
  }
  if (inference_ranks.empty()) return absl::UnavailableError("no inference rank can take work");
  if (cache_ranks.empty() && need.cache) {
    return absl::UnavailableError(absl::StrCat("cache rank ", need.cache->rank, " is gone"));
  }
  if (cache_ranks.empty()) return absl::UnavailableError("no cache rank can take work");

  // The inference rank decides first. Beside it, a cache rank that it hosts itself is nearer than any other.
  std::optional<Route> best;
  const Candidate* best_inference = nullptr;
  const Candidate* best_cache = nullptr;
  std::tuple<int, Preference, bool, Preference> best_preference;
  for (const Candidate& inference : inference_ranks) {
    for (const Candidate& cache : cache_ranks) {
      if (!CanReach(*inference.record, *cache.record)) continue;
      const auto preference = std::tuple(inference.misplacement, inference.preference,
                                         cache.record->hosted_by_rank.empty(), cache.preference);
      if (best && preference >= best_preference) continue;
      best = Route{.inference = inference.record->identity, .cache = cache.record->identity};
      best_preference = preference;
      best_inference = &inference;
      best_cache = &cache;
    }
  }
  if (!best) return absl::UnavailableError("no inference rank that can take work reaches a cache rank that can");
  best->hand_over = need.work == Work::kPrefill && best_inference->record->phases == v1::PHASES_PREFILL &&
                    std::any_of(inference_ranks.begin(), inference_ranks.end(), [&](const Candidate& other) {
                      return other.record->phases != v1::PHASES_PREFILL && CanReach(*other.record, *best_cache->record);
                    });
  return *best;
}

}  // namespace winnow
