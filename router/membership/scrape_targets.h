#pragma once
#include <string>

#include "router/membership/registry.h"

namespace winnow {

// The processes of a cluster as Prometheus's HTTP service discovery wants them: the router, where it is asked at
// `own_address`, and every registered rank, with the labels `role` and `rank` that their samples carry. Ranks that
// share a process are one target.
std::string ScrapeTargetsJson(const MembershipSnapshot& snapshot, const std::string& router_rank,
                              const std::string& own_address);

}  // namespace winnow
