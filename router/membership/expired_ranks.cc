#include "router/membership/expired_ranks.h"

namespace winnow {
namespace {

// Whoever waits for a rank has heard of its loss many times by then.
constexpr std::chrono::seconds kExpiredIsNews{60};

// A rank that is late tries to register every few seconds at least.
constexpr std::chrono::seconds kLateIsNews{30};

// For so long who comes back may take to be reached: on a starved machine a registration takes several tries of 8 s.
constexpr std::chrono::seconds kLongestReturn{60};

}  // namespace

void ExpiredRanks::Add(const v1::Identity& identity, const RecentWorst& silence, Time now) {
  expired_[{identity.role(), identity.rank()}] = {identity, silence, now};
}

void ExpiredRanks::Heard(const v1::Identity& identity, Time now) {
  const auto it = expired_.find({identity.role(), identity.rank()});
  if (it == expired_.end() || it->second.identity.incarnation() != identity.incarnation()) return;
  if (!it->second.heard) it->second.heard = now;
  if (now - *it->second.heard < kLongestReturn) late_seen_ = now;
}

std::optional<RecentWorst> ExpiredRanks::Returned(const v1::Identity& identity, Time now) {
  const auto it = expired_.find({identity.role(), identity.rank()});
  if (it == expired_.end()) return std::nullopt;
  std::optional<RecentWorst> silence;
  if (it->second.identity.incarnation() == identity.incarnation()) {
    silence = it->second.silence;
    late_seen_ = now;
  }
  expired_.erase(it);
  return silence;
}

bool ExpiredRanks::any_late(Time now) const {
  return late_seen_ && now - *late_seen_ < kLateIsNews;
}

void ExpiredRanks::NameCacheRanks(Time now, v1::HeartbeatResponse& response) const {
  for (const auto& [name, expired] : expired_) {
    if (name.first != v1::ROLE_CACHE_RANK || now - expired.when > kExpiredIsNews) continue;
    *response.add_expired_cache_ranks() = expired.identity;
  }
}

}  // namespace winnow
