#include "router/dispatch/routing_policy.h"

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

// `load` of a rank of weight 1 that is as busy. Keeps the order of loads of equal weights.
uint64_t ForWeight(uint64_t load, const RankRecord& record) {
  constexpr double kPrecision = 1 << 10;
  return static_cast<uint64_t>(static_cast<double>(load) * kPrecision / record.orders.weight);
}

// No sequence would wait there before this one.
bool HasFreeRow(const RankRecord& record, const AssignedCounts& assigned) {
  const uint32_t batch_rows = record.limits.max_running();
  return record.load.waiting_sequences() == 0 && (batch_rows == 0 || SequencesOn(record, assigned) < batch_rows);
}

bool Contains(const Placement& ranks, const RankKey& key) {
  return std::find(ranks.begin(), ranks.end(), key) != ranks.end();
}

// Sort keys: lower is better. Preferred, not avoided, queued prompt tokens, sequences, used bytes.
using InferencePreference = std::tuple<bool, bool, uint64_t, uint64_t, uint64_t>;

InferencePreference PreferenceOf(const RankRecord& record, const AssignedCounts& assigned, const RouteNeed& need,
                                 bool by_prompt_tokens) {
  const RankKey key = KeyOf(record.identity);
  const uint64_t prompt_tokens =
      std::max<uint64_t>(record.load.queued_prompt_tokens(), AssignedTo(record, assigned).prompt_tokens);
  // The sequence itself counts, so that of two ranks with nothing to do the one of more weight is the first.
  return {need.prefer_inference != key, need.avoid_inference == key,
          by_prompt_tokens ? ForWeight(prompt_tokens, record) : 0, ForWeight(SequencesOn(record, assigned) + 1, record),
          ~record.load.free_bytes()};
}

// Hosted by the inference rank itself, large enough, preferred, not avoided, with room, load, used bytes.
using CachePreference = std::tuple<bool, bool, bool, bool, bool, uint64_t, uint64_t>;

struct CacheCandidate {
  const RankRecord* record;
  CachePreference preference;
};

// As far as is known here: it would not hold the sequence if nothing else were there.
bool IsTooSmall(const RankRecord& record, const RouteNeed& need, uint64_t shard_bytes) {
  const uint64_t total_bytes = record.load.total_bytes();
  return (total_bytes > 0 && total_bytes < shard_bytes) || Contains(need.too_small, KeyOf(record.identity));
}

CachePreference PreferenceOf(const RankRecord& record, const AssignedCounts& assigned, const RouteNeed& need,
                             uint64_t shard_bytes, const SlowStart& slow_start) {
  const RankKey key = KeyOf(record.identity);
  return {record.hosted_by_rank.empty(),
          IsTooSmall(record, need, shard_bytes),
          !Contains(need.prefer_caches, key),
          Contains(need.avoid_caches, key),
          record.load.free_bytes() < shard_bytes,
          ForWeight(slow_start.LoadOf(SequencesOn(record, assigned), record.joined), record),
          ~record.load.free_bytes()};
}

bool CanReach(const RankRecord& inference, const RankRecord& cache) {
  if (!cache.hosted_by_rank.empty()) return cache.hosted_by_rank == inference.identity.rank();
  return !Contains(inference.unreached, KeyOf(cache.identity));
}

// `need` with a preference for the ranks at the cached prefix, where they are not too busy.
RouteNeed FollowPrefix(const MembershipSnapshot& snapshot, const AssignedCounts& assigned, RouteNeed need) {
  if (need.prefix_caches.empty() || !need.caches.empty() || !need.prefer_caches.empty()) return need;
  const auto busy = [&](const RankRecord& rank) {
    uint64_t least = SequencesOn(rank, assigned);
    for (const RankRecord& record : snapshot.ranks) {
      if (record.identity.role() == rank.identity.role() && record.takes_work()) {
        least = std::min(least, SequencesOn(record, assigned));
      }
    }
    return SequencesOn(rank, assigned) > 2 * least + kPrefixLoadSlack;
  };
  const RankRecord* cache = nullptr;
  for (const RankKey& key : need.prefix_caches) {
    cache = snapshot.Find(v1::ROLE_CACHE_RANK, key);
    if (cache == nullptr || !cache->takes_work() || Contains(need.avoid_caches, key) || busy(*cache)) return need;
    const uint64_t shard_bytes = need.kv_bytes / need.prefix_caches.size();
    if (IsTooSmall(*cache, need, shard_bytes)) return need;
    // Others may be spread wider.
    const bool has_room = cache->load.free_bytes() >= shard_bytes;
    if (!has_room && need.shards.most > need.prefix_caches.size()) return need;
  }
  if (!cache->hosted_by_rank.empty()) {
    // Only its host reaches it, so that the choice is of both.
    const auto host = std::find_if(snapshot.ranks.begin(), snapshot.ranks.end(), [&](const RankRecord& record) {
      return record.identity.role() == v1::ROLE_INFERENCE_RANK && record.identity.rank() == cache->hosted_by_rank;
    });
    if (host == snapshot.ranks.end() || !host->takes_work() || busy(*host)) return need;
    if (need.prefer_inference || need.avoid_inference == KeyOf(host->identity)) return need;
    need.prefer_inference = KeyOf(host->identity);
  }
  need.prefer_caches = need.prefix_caches;
  return need;
}

// The ranks that the sequence is on, in its order.
absl::StatusOr<std::vector<const RankRecord*>> PinnedCaches(const MembershipSnapshot& snapshot,
                                                            const Placement& placement) {
  std::vector<const RankRecord*> records;
  for (const RankKey& key : placement) {
    records.push_back(snapshot.Find(v1::ROLE_CACHE_RANK, key));
    if (records.back() == nullptr) return absl::UnavailableError(absl::StrCat("cache rank ", key.rank, " is gone"));
  }
  return records;
}

// The best ones that `inference` reaches, in the order of their names; fewer than need.shards.least when there are no
// more.
std::vector<CacheCandidate> ChooseCaches(const std::vector<const RankRecord*>& caches, const RankRecord& inference,
                                         const AssignedCounts& assigned, const RouteNeed& need,
                                         const SlowStart& slow_start) {
  std::vector<CacheCandidate> chosen;
  // Where siblings or the prefix are, as many shards.
  const auto preferred = static_cast<uint32_t>(need.prefer_caches.size());
  const bool as_preferred = preferred >= need.shards.least && preferred <= need.shards.most;
  for (uint32_t shards = as_preferred ? preferred : need.shards.least; shards <= need.shards.most; ++shards) {
    const uint64_t shard_bytes = need.kv_bytes / shards;
    std::vector<CacheCandidate> candidates;
    for (const RankRecord* cache : caches) {
      if (!CanReach(inference, *cache)) continue;
      candidates.push_back({cache, PreferenceOf(*cache, assigned, need, shard_bytes, slow_start)});
    }
    if (candidates.size() < shards && !chosen.empty()) break;
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const auto& a, const auto& b) { return a.preference < b.preference; });
    if (candidates.size() > shards) candidates.resize(shards);
    chosen = std::move(candidates);
    const auto has_room = [&](const CacheCandidate& c) { return c.record->load.free_bytes() >= shard_bytes; };
    if (as_preferred || std::all_of(chosen.begin(), chosen.end(), has_room)) break;
  }
  std::sort(chosen.begin(), chosen.end(),
            [](const auto& a, const auto& b) { return a.record->identity.rank() < b.record->identity.rank(); });
  return chosen;
}

}  // namespace

absl::StatusOr<Route> ChooseRoute(const MembershipSnapshot& snapshot, const AssignedCounts& assigned,
                                  const RouteNeed& wanted, const SlowStart& slow_start) {
  const RouteNeed need = FollowPrefix(snapshot, assigned, wanted);
  const bool by_prompt_tokens = need.work == Work::kPrefill &&
                                std::any_of(snapshot.ranks.begin(), snapshot.ranks.end(), [](const RankRecord& record) {
                                  return record.phases == v1::PHASES_PREFILL;
                                });
  std::vector<const RankRecord*> inference_ranks, cache_ranks;
  for (const RankRecord& record : snapshot.ranks) {
    if (!record.takes_work()) continue;
    (record.identity.role() == v1::ROLE_CACHE_RANK ? cache_ranks : inference_ranks).push_back(&record);
  }
  if (inference_ranks.empty()) return absl::UnavailableError("no inference rank can take work");
  if (need.caches.empty() && cache_ranks.size() < need.shards.least) {
    return absl::UnavailableError(cache_ranks.empty()
                                      ? "no cache rank can take work"
                                      : absl::StrCat("sequences are spread over ", need.shards.least,
                                                     " cache ranks, and ", cache_ranks.size(), " can take work"));
  }
  std::vector<const RankRecord*> pinned;
  if (!need.caches.empty()) {
    WINNOW_ASSIGN_OR_RETURN(pinned, PinnedCaches(snapshot, need.caches));
  }

  // The inference rank decides first. Beside it, a cache rank that it hosts itself is nearer than any other.
  std::optional<Route> best;
  const RankRecord* best_inference = nullptr;
  // Cache ranks are large enough, attempts do not fail on the inference rank, it is there for it, its load, cache
  // ranks.
  using RoutePreference = std::tuple<bool, bool, int, InferencePreference, std::vector<CachePreference>>;
  RoutePreference best_preference;
  for (const RankRecord* inference : inference_ranks) {
    if (need.needs_free_row && !HasFreeRow(*inference, assigned)) continue;
    RoutePreference preference{false,
                               inference->fails() || Contains(need.failing_inference, KeyOf(inference->identity)),
                               Misplacement(*inference, need),
                               PreferenceOf(*inference, assigned, need, by_prompt_tokens),
                               {}};
    Route route{.inference = inference->identity, .caches = {}, .numerics = inference->numerics};
    if (!pinned.empty()) {
      if (!std::all_of(pinned.begin(), pinned.end(), [&](const auto* cache) { return CanReach(*inference, *cache); })) {
        continue;
      }
      for (const RankRecord* cache : pinned) route.caches.push_back(cache->identity);
    } else {
      const std::vector<CacheCandidate> chosen = ChooseCaches(cache_ranks, *inference, assigned, need, slow_start);
      if (chosen.size() < need.shards.least) continue;
      for (const CacheCandidate& cache : chosen) {
        route.caches.push_back(cache.record->identity);
        std::get<0>(preference) |= IsTooSmall(*cache.record, need, need.kv_bytes / chosen.size());
        std::get<std::vector<CachePreference>>(preference).push_back(cache.preference);
      }
    }
    if (best && preference >= best_preference) continue;
    best = std::move(route);
    best_preference = preference;
    best_inference = inference;
  }
  if (!best) {
    return absl::UnavailableError(need.shards.least == 1
                                      ? "no inference rank that can take work reaches a cache rank that can"
                                      : absl::StrCat("no inference rank that can take work reaches ", need.shards.least,
                                                     " cache ranks that can"));
  }
  const auto reaches_all = [&](const RankRecord& inference) {
    return std::all_of(best->caches.begin(), best->caches.end(), [&](const v1::Identity& cache) {
      return CanReach(inference, *snapshot.Find(v1::ROLE_CACHE_RANK, KeyOf(cache)));
    });
  };
  best->hand_over = need.work == Work::kPrefill && best_inference->phases == v1::PHASES_PREFILL &&
                    std::any_of(inference_ranks.begin(), inference_ranks.end(), [&](const RankRecord* other) {
                      return other->phases != v1::PHASES_PREFILL && reaches_all(*other);
                    });
  return *best;
}

std::optional<v1::Identity> ChooseReplica(const MembershipSnapshot& snapshot, const RankKey& primary,
                                          uint64_t kv_bytes) {
  const RankRecord* first = nullptr;  // of all by name
  const RankRecord* next = nullptr;   // of those behind the primary
  const auto precedes = [](const RankRecord& record, const RankRecord* than) {
    return than == nullptr || record.identity.rank() < than->identity.rank();
  };
  for (const RankRecord& record : snapshot.ranks) {
    if (record.identity.role() != v1::ROLE_CACHE_RANK || !record.takes_work() || !record.hosted_by_rank.empty())
      continue;
    if (record.identity.rank() == primary.rank || record.load.free_bytes() < kv_bytes) continue;
    if (precedes(record, first)) first = &record;
    if (record.identity.rank() > primary.rank && precedes(record, next)) next = &record;
  }
  if (next == nullptr) next = first;
  if (next == nullptr) return std::nullopt;
  return next->identity;
}

}  // namespace winnow
