#include "cmd/admin/order_reach.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace winnow {

std::string OrderReach(const std::vector<RouterOrdered>& routers) {
  const std::string takers = absl::StrJoin(routers, ", ", [](std::string* text, const RouterOrdered& router) {
    absl::StrAppend(text, router.response.router().rank(), " at ", router.server);
  });
  const auto in_registry = [](const RouterOrdered& router) { return router.response.in_registry(); };
  if (std::all_of(routers.begin(), routers.end(), in_registry)) {
    return absl::StrCat("Taken by ", takers, " for all routers: the registry keeps it.\n");
  }
  for (const RouterOrdered& router : routers) {
    if (router.response.registry_error().empty()) continue;
    return absl::StrCat("Taken by ", takers, ", which publish it when they can: ", router.response.registry_error(),
                        ".\n");
  }
  return absl::StrCat("Taken by ", takers, routers.size() == 1 ? ", until it ends.\n" : ", until they end.\n");
}

}  // namespace winnow
