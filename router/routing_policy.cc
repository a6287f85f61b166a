#include "router/routing_policy.h"

#include <algorithm>
#include <tuple>
#include <vector>

namespace winnow {
namespace {

uint64_t Load(const RankRecord& record, const AssignedCounts& assigned) {
  const auto it = assigned.find(KeyOf(record.identity));
  const uint64_t own = it == assigned.end() ? 0 : it->second;
  return std::max<uint64_t>(uint64_t{record.load.running_sequences()} + record.load.waiting_sequences(), own);
}

// Sort key: lower is better.
using Preference = std::tuple<bool, bool, uint64_t, uint64_t>;

Preference PreferenceOf(const RankRecord& record, const AssignedCounts& assigned, const std::optional<RankKey>& prefer,
                        const std::optional<RankKey>& avoid) {
  const RankKey key = KeyOf(record.identity);
  return {prefer != key, avoid == key, Load(record, assigned), ~record.load.free_bytes()};
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
    uint64_t least = Load(rank, assigned);
    for (const RankRecord& record : snapshot.ranks) {
      if (record.identity.role() == rank.identity.role() && TakesWork(record)) {
        least = std::min(least, Load(record, assigned));
      }
    }
    return Load(rank, assigned) > 2 * least + kPrefixLoadSlack;
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
  };
  std::vector<Candidate> inference_ranks;
  std::vector<Candidate> cache_ranks;
  for (const RankRecord& record : snapshot.ranks) {
    if (record.identity.role() == v1::ROLE_INFERENCE_RANK) {
      if (!TakesWork(record)) continue;
      inference_ranks.push_back({&record, PreferenceOf(record, assigned, need.prefer_inference, need.avoid_inference)});
    } else if (record.identity.role() == v1::ROLE_CACHE_RANK) {
      if (need.cache ? KeyOf(record.identity) != *need.cache : !TakesWork(record)) continue;
      cache_ranks.push_back({&record, PreferenceOf(record, assigned, need.prefer_cache, need.avoid_cache)});
    }
  }
  if (inference_ranks.empty()) return absl::UnavailableError("no inference rank can take work");
  if (cache_ranks.empty() && need.cache) {
    return absl::UnavailableError(absl::StrCat("cache rank ", need.cache->rank, " is gone"));
  }
  if (cache_ranks.empty()) return absl::UnavailableError("no cache rank can take work");

  // The inference rank decides first. Beside it, a cache rank that it hosts itself is nearer than any other.
  std::optional<Route> best;
  std::tuple<Preference, bool, Preference> best_preference;
  for (const Candidate& inference : inference_ranks) {
    for (const Candidate& cache : cache_ranks) {
      if (!CanReach(*inference.record, *cache.record)) continue;
      const auto preference = std::tuple(inference.preference, cache.record->hosted_by_rank.empty(), cache.preference);
      if (best && preference >= best_preference) continue;
      best = Route{.inference = inference.record->identity, .cache = cache.record->identity};
      best_preference = preference;
    }
  }
  if (!best) return absl::UnavailableError("no inference rank that can take work reaches a cache rank that can");
  return *best;
}

}  // namespace winnow
