#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cmd/admin/admin_client.h"

namespace winnow {

// A table for each router.
std::string RankTable(const std::vector<RouterRanks>& routers);
// {"routers": [{"server", "router", "moved_requests", "ranks": [...]}]}
nlohmann::ordered_json RankJson(const std::vector<RouterRanks>& routers);
// Lines "rank weight", under a heading where there are several routers.
std::string WeightTable(const std::vector<RouterRanks>& routers);

}  // namespace winnow
