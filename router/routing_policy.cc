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

AssignedWork AssignedTo(const RankRecord& record, const AssignedCounts& assigned) {
  const auto it = assigned.find(KeyOf(record.identity));
  return it == assigned.end() ? AssignedWork() : it->second;
}

// Sequences that run and wait there, as far as is known here.
uint64_t SequencesOn(const RankRecord& record, const AssignedCounts& assigned) {
  return std::max<uint64_t>(uint64_t{record.load.running_sequences()} + record.load.waiting_sequences(),
                            AssignedTo(record, assigned).requests);
}

// Sort key: lower is better. Preferred, not avoided, queued prompt tokens, sequences, used bytes.
using Preference = std::tuple<bool, bool, uint64_t, uint64_t, uint64_t>;

Preference PreferenceOf(const RankRecord& record, const AssignedCounts& assigned, const std::optional<RankKey>& prefer,
                        const std::optional<RankKey>& avoid, bool by_prompt_tokens) {
  const RankKey key = KeyOf(record.identity);
  const uint64_t prompt_tokens =
      std::max<uint64_t>(record.load.queued_prompt_tokens(), AssignedTo(record, assigned).prompt_tokens);
  return {prefer != key, avoid == key, by_prompt_tokens ? prompt_tokens : 0, SequencesOn(record, assigned),
          ~record.load.free_bytes()};
}

bool TakesWork(const RankRecord& record) {
  return !record.suspect && !record.load.draining();
}

bool CanReach(const RankRecord& inference, const RankRecord& cache) {
  return cache.hosted_by_rank.empty() || cache.hosted_by_rank == inference.identity.rank();
}

// `need` with a preference for the ranks at the cached prefix, where they are not too busy.
RouteNeed FollowPrefix(const MembershipSnapshot& snapshot, const AssignedCounts& assigned, RouteNeed need) {
  if (!need.prefix_cache || need.cache || need.prefer_cache || need.prefix_cache == need.avoid_cache) return need;
  const RankRecord* cache = snapshot.Find(v1::ROLE_CACHE_RANK, *need.prefix_cache);
  if (cache == nullptr || !TakesWork(*cache)) return need;
  const auto busy = [&](const RankRecord& rank) {
    uint64_t least = SequencesOn(rank, assigned);
    for (const RankRecord& record : snapshot.ranks) {
      if (record.identity.role() == rank.identity.role() && TakesWork(record)) {
        least = std::min(least, SequencesOn(record, assigned));
      }
    }
    return SequencesOn(rank, assigned) > 2 * least + kPrefixLoadSlack;
  };
  if (busy(*cache)) return need;
  if (!cache->hosted_by_rank.empty()) {
    // Only its host reaches it, so that the choice is of both.
    const auto host = std::find_if(snapshot.ranks.begin(), snapshot.ranks.end(), [&](const RankRecord& record) {
      return record.identity.role() == v1::ROLE_INFERENCE_RANK && record.identity.rank() == cache->hosted_by_rank;
    });
    if (host == snapshot.ranks.end() || !TakesWork(*host) || busy(*host)) return need;
    if (need.prefer_inference || need.avoid_inference == KeyOf(host->identity)) return need;
    need.prefer_inference = KeyOf(host->identity);
  }
  need.prefer_cache = need.prefix_cache;
  return need;
}

}  // namespace

absl::StatusOr<Route> ChooseRoute(const MembershipSnapshot& snapshot, const AssignedCounts& assigned,
                                  const RouteNeed& wanted) {
  const RouteNeed need = FollowPrefix(snapshot, assigned, wanted);
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
