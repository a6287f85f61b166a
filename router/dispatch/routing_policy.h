#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "router/membership/registry.h"
#include "router/membership/slow_start.h"

namespace winnow {

// Where one attempt of a request runs.
struct Route {
  v1::Identity inference;
  std::vector<v1::Identity> caches;  // one for each shard of its KV, in their order
  bool hand_over = false;            // the inference rank is there for prefill, and another one can decode
  std::string numerics = {};         // of the inference rank
};

// What a request has to have done next.
enum class Work { kPrefill, kDecode };

// How many cache ranks a sequence is spread over: the fewest from `least` on whose free bytes hold it, `most` where
// none do.
struct ShardRange {
  uint32_t least = 1;
  uint32_t most = 1;
};

// What a request asks of its route.
struct RouteNeed {
  Work work = Work::kPrefill;
  uint32_t prompt_tokens = 0;
  uint64_t kv_bytes = 0;  // of all its positions on cache ranks (KvBytes); 0: not known
  ShardRange shards{};
  Placement caches{};                         // its KV is there: no other cache ranks will do
  std::optional<RankKey> prefer_inference{};  // where its siblings are
  Placement prefer_caches{};
  Placement prefix_caches{};                 // have the beginning of its prompt: unless others have far less to do
  std::optional<RankKey> avoid_inference{};  // the last attempt failed there: only if there is no other
  Placement avoid_caches{};
  Placement failing_inference{};  // attempts of any request fail there: only if there are no others
  // It runs, and goes on where it is unless an inference rank can begin with it at once.
  bool needs_free_row = false;
  Placement too_small{};  // have said that they could never hold it: only if there are no others
};

// What this router has on a rank now. Heartbeats report load up to half a second late: without these counts, a burst
// would all go to one rank.
struct AssignedWork {
  uint32_t requests = 0;
  uint64_t prompt_tokens = 0;  // of requests whose prompt is not known to be computed
};
using AssignedCounts = std::map<RankKey, AssignedWork>;

// Work on a cache rank that has a prefix, beside that of the least loaded, at which computing the prefix again
// elsewhere is preferred to waiting: more than twice as much and this.
inline constexpr uint64_t kPrefixLoadSlack = 2;

// The least loaded ranks that may serve and reach each other: those that are large enough for the sequence, then those
// with room for it now, then fewest running and waiting sequences for their weight, then most free bytes, then by name.
// Suspect, cordoned and draining ranks are left out, except that a cordoned or draining cache rank keeps the sequences
// that it has. A cache rank that has just joined counts as busier (SlowStart). Pure. UNAVAILABLE says what is missing.
//
// Where inference ranks are there for prefill or decode alone, a request goes to one of its phase (a prompt that is
// short enough for the ranks that decode, to one of these), and to another one only if there is none: any can do
// everything. Prompts then go where the fewest prompt tokens are queued.
//
// Several cache ranks are taken in the order of their names, so that most sequences have the same shard on the same
// rank, and prompts that begin alike find each other there.
absl::StatusOr<Route> ChooseRoute(const MembershipSnapshot& snapshot, const AssignedCounts& assigned,
                                  const RouteNeed& need, const SlowStart& slow_start = {});

// Where the replica of a sequence of `kv_bytes` is to be whose KV is on `primary`: the next cache rank by name that
// takes work, is a process of its own and has room, so that replicas are spread as primaries are, and prompts that
// begin alike, which have one primary, have their replicas in one place, too. nullopt: there is none. Pure.
std::optional<v1::Identity> ChooseReplica(const MembershipSnapshot& snapshot, const RankKey& primary,
                                          uint64_t kv_bytes);

}  // namespace winnow
