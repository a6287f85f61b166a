#pragma once
#include "router/http/route_table.h"

namespace winnow {

// Serves the page at "/" and its parts below "/page/". They may refer to each other and to this server's API, to
// nothing else: the policy that comes with each of them keeps a browser to that. A browser asks every time whether what
// it has is still right, so that the page never lags behind the program.
void AddPageRoutes(RouteTable* routes);

}  // namespace winnow
