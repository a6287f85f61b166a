#include "common/rpc/router_list.h"

#include <algorithm>

#include "common/config/host_address.h"

namespace winnow {

absl::StatusOr<std::vector<HostPort>> RouterList::Candidates() const {
  std::vector<HostPort> candidates;
  absl::Status unknown = absl::InvalidArgumentError("no router is named");
  for (const HostPort& router : routers_) {
    const absl::StatusOr<std::vector<HostPort>> addresses = ResolveHost(router);
    if (!addresses.ok()) unknown = addresses.status();
    if (addresses.ok()) candidates.insert(candidates.end(), addresses->begin(), addresses->end());
  }
  if (candidates.empty()) return unknown;
  // Behind the one that was lost come those that follow it, so that all ranks go on to the same one.
  const auto last = std::find(candidates.begin(), candidates.end(), last_answered_);
  if (last != candidates.end()) std::rotate(candidates.begin(), last, candidates.end());
  return candidates;
}

}  // namespace winnow
