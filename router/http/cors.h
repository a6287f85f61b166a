#pragma once
#include <string>
#include <vector>

#include "router/http/http_options.h"

namespace winnow {

// Which pages of other origins may use the server from a browser.
struct CorsPolicy {
  std::vector<std::string> origins;  // "https://example.org"; "*" alone is every origin; none: the handler is as it was
};

// Answers the browser's questions beforehand (OPTIONS with Access-Control-Request-Method) and adds
// Access-Control-Allow-Origin to what `handler` answers to a page of an allowed origin. A page of another origin gets
// the answer without it, which its browser keeps from it.
HttpHandler WithCors(CorsPolicy policy, HttpHandler handler);

}  // namespace winnow
