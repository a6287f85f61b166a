#include "router/routing_policy.h"

#include <algorithm>
#include <tuple>

namespace winnow {
namespace {

uint64_t Load(const RankRecord& record, const AssignedCounts& assigned) {
  const auto it = assigned.find(KeyOf(record.identity));
  const uint64_t own = it == assigned.end() ? 0 : it->second;
  return std::max<uint64_t>(uint64_t{record.load.running_sequences()} + record.load.waiting_sequences(), own);
}

const RankRecord* LeastLoaded(const MembershipSnapshot& snapshot, const AssignedCounts& assigned, v1::Role role,
                              const std::optional<RankKey>& prefer, const std::optional<RankKey>& avoid) {
  const RankRecord* best = nullptr;
  auto rank = [&](const RankRecord& record) {
    const RankKey key = KeyOf(record.identity);
    return std::tuple(prefer != key, avoid == key, Load(record, assigned), ~record.load.free_bytes());
  };
  for (const RankRecord& record : snapshot.ranks) {
    if (record.identity.role() != role || record.suspect || record.load.draining()) continue;
    if (!best || rank(record) < rank(*best)) best = &record;
  }
  return best;
}

}  // namespace

absl::StatusOr<Route> ChooseRoute(const MembershipSnapshot& snapshot, const AssignedCounts& assigned,
                                  const RouteNeed& need) {
  const RankRecord* cache =
      need.cache ? snapshot.Find(v1::ROLE_CACHE_RANK, *need.cache)
                 : LeastLoaded(snapshot, assigned, v1::ROLE_CACHE_RANK, need.prefer_cache, need.avoid_cache);
  const RankRecord* inference =
      LeastLoaded(snapshot, assigned, v1::ROLE_INFERENCE_RANK, need.prefer_inference, need.avoid_inference);
  if (!inference) return absl::UnavailableError("no inference rank can take work");
  if (!cache && need.cache) return absl::UnavailableError(absl::StrCat("cache rank ", need.cache->rank, " is gone"));
  if (!cache) return absl::UnavailableError("no cache rank can take work");
  return Route{.inference = inference->identity, .cache = cache->identity};
}

}  // namespace winnow
