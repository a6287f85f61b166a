#pragma once
#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "common/base/recent_worst.h"
#include "winnow/v1/membership.pb.h"

namespace winnow {

// The ranks that were given up for their silence, the last start of each name, and whether any of them has shown since
// that it lives: then somebody has too little CPU, and what is missing is late rather than gone. Not thread-safe.
class ExpiredRanks {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Name = std::pair<v1::Role, std::string>;

  // `silence`: that it came back from before, and now did not.
  void Add(const v1::Identity& identity, const RecentWorst& silence, Time now);
  // A sign of life of this start of a rank, which is not registered. One that has given signs for longer than a
  // registration may take is not late: it reaches this router, which does not reach it.
  void Heard(const v1::Identity& identity, Time now);
  // A start of a rank registers: the silences that it is known for, if it is the one that was given up.
  std::optional<RecentWorst> Returned(const v1::Identity& identity, Time now);

  // A rank that was given up has shown that it lives, not long ago.
  bool any_late(Time now) const;
  // The cache ranks that whoever waits for them may not have heard of.
  void NameCacheRanks(Time now, v1::HeartbeatResponse& response) const;

 private:
  struct Expired {
    v1::Identity identity;
    RecentWorst silence;
    Time when;
    std::optional<Time> heard{};  // its first sign of life since then
  };
  std::map<Name, Expired> expired_;
  std::optional<Time> late_seen_;  // when one of them showed itself last
};

}  // namespace winnow
