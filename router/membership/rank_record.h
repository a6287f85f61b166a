#pragma once
#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "router/membership/rank_orders.h"
#include "winnow/v1/membership.pb.h"

namespace winnow {

// One process: the name of a rank, and which start of it.
struct RankKey {
  std::string rank;
  uint64_t incarnation = 0;

  friend bool operator==(const RankKey&, const RankKey&) = default;
  friend auto operator<=>(const RankKey&, const RankKey&) = default;
};
inline RankKey KeyOf(const v1::Identity& identity) {
  return {identity.rank(), identity.incarnation()};
}

// The cache ranks of a sequence: one, or one for each shard of its KV, in their order.
using Placement = std::vector<RankKey>;
inline Placement KeysOf(std::span<const v1::Identity> identities) {
  Placement keys;
  for (const v1::Identity& identity : identities) keys.push_back(KeyOf(identity));
  return keys;
}

// A rank that is registered and has not been found dead.
struct RankRecord {
  v1::Identity identity;
  v1::ModelLimits limits;  // inference ranks
  v1::RankLoad load;
  std::string metrics_address;
  std::string numerics;                 // inference ranks: equal text promises equal bits
  std::string hosted_by_rank;           // cache ranks: the one inference rank that reaches them, if not all do
  v1::Phases phases = v1::PHASES_BOTH;  // inference ranks: what of a request they are there for
  uint32_t decode_prefill_tokens = 0;   // with PHASES_DECODE: longest prompt that they compute all the same
  std::chrono::steady_clock::time_point joined{};  // this start of it
  bool suspect = false;  // someone could not reach it since its last heartbeat, or since it was dialed: gets no work
  bool late = false;     // silent for a lease, and not given up yet: gets no work
  // Inference ranks: the cache ranks that they do not reach, as far as is known.
  std::vector<RankKey> unreached{};
  RankOrders orders{};

  // Requests that can go on elsewhere are to leave it.
  bool drains() const { return load.draining() || orders.duty == RankDuty::kDrain; }
  // Nothing comes of what it is asked for: it gets work where no other rank can take it.
  bool fails() const { return !load.failing().empty(); }
  bool takes_work() const { return !suspect && !late && !drains() && orders.duty == RankDuty::kServe; }
};

struct MembershipSnapshot {
  uint64_t version = 0;
  std::vector<RankRecord> ranks;  // sorted by role, then by name

  const RankRecord* Find(v1::Role role, const RankKey& key) const;
};

}  // namespace winnow
