#pragma once
#include <cstdint>
#include <map>
#include <optional>

#include "common/base/status.h"
#include "router/registry.h"

namespace winnow {

// Where one attempt of a request runs.
struct Route {
  v1::Identity inference;
  v1::Identity cache;
};

// What a request asks of its route.
struct RouteNeed {
  std::optional<RankKey> cache{};             // its KV is there: no other cache rank will do
  std::optional<RankKey> prefer_inference{};  // where its siblings are
  std::optional<RankKey> prefer_cache{};
  std::optional<RankKey> prefix_cache{};     // has the beginning of its prompt: unless others have far less to do
  std::optional<RankKey> avoid_inference{};  // the last attempt failed there: only if there is no other
  std::optional<RankKey> avoid_cache{};
};

// Requests that this router has on each rank now. Heartbeats report load up to half a second late: without this count,
// a burst would all go to one rank.
using AssignedCounts = std::map<RankKey, uint32_t>;

// Work on a cache rank that has a prefix, beside that of the least loaded, at which computing the prefix again
// elsewhere is preferred to waiting: more than twice as much and this.
inline constexpr uint64_t kPrefixLoadSlack = 2;

// The least loaded ranks that may serve and reach each other: fewest running and waiting sequences, then most free
// bytes, then by name. Suspect and draining ranks are left out, except that a draining cache rank keeps the sequences
// that it has. Pure. UNAVAILABLE says what is missing.
absl::StatusOr<Route> ChooseRoute(const MembershipSnapshot& snapshot, const AssignedCounts& assigned,
                                  const RouteNeed& need);

}  // namespace winnow
