#pragma once
#include <optional>
#include <string>
#include <vector>

#include "common/discovery/registry_presence.h"
#include "router/membership/reachability.h"
#include "router/membership/registry.h"

namespace winnow {

// "serving", "cordoned" (takes no new work), "draining" (what runs there leaves it, too), "failing" (nothing comes of
// what it is asked for) or "unreachable".
const char* StateOf(const RankRecord& record);
inline constexpr const char* kRankStates[] = {"serving", "cordoned", "draining", "failing", "unreachable"};

// The ranks as GET /ranks shows them: who they are, where, whether they take work and why not, and those that would
// join and are not reached. With `registry` also how the router stands with it, and the routers there.
std::string RankListJson(const MembershipSnapshot& snapshot, const std::vector<Reachability::Unreachable>& unreachable,
                         const std::optional<RegistryPresence::State>& registry = std::nullopt);

}  // namespace winnow
