#pragma once
#include "router/http/http_options.h"
#include "router/keys/caller.h"

namespace winnow {

// Passes requests with a valid API key, and those for paths that need none: probes and metrics (/health, /ping, /ready,
// /metrics) and static pages (/ and what is below /page/), which are the same for everybody. Others get 401. No
// authenticator: all pass.
HttpHandler WithApiKeys(Authenticator authenticate, HttpHandler handler);

}  // namespace winnow
