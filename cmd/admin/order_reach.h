#pragma once
#include <string>
#include <vector>

#include "cmd/admin/admin_client.h"

namespace winnow {

// For people: which routers took an order, how far it reaches, and for how long.
std::string OrderReach(const std::vector<RouterOrdered>& routers);

}  // namespace winnow
