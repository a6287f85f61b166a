#pragma once
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/config/parse_value.h"

namespace winnow {

// The routers that a rank may register with, in the order of preference: as they were given, and for a name with
// several addresses in the order of these, which is the same for every rank. One that has answered comes first from
// then on, until it is lost and another has answered.
class RouterList {
 public:
  explicit RouterList(std::vector<HostPort> routers) : routers_(std::move(routers)) {}

  // Numeric addresses to try, one after the other. Names are looked up each time. UNAVAILABLE when none is known.
  absl::StatusOr<std::vector<HostPort>> Candidates() const;
  void Answered(const HostPort& address) { last_answered_ = address; }

 private:
  const std::vector<HostPort> routers_;
  HostPort last_answered_;
};

}  // namespace winnow
