#include "router/openai/api_key_gate.h"

#include <algorithm>
#include <array>

#include "router/openai/json/api_error.h"

namespace winnow {
namespace {

constexpr std::array<std::string_view, 5> kOpenPaths = {"/", "/health", "/ping", "/ready", "/metrics"};
constexpr std::string_view kOpenFolder = "/page/";

bool NeedsKey(const HttpRequest& request) {
  return std::find(kOpenPaths.begin(), kOpenPaths.end(), request.path) == kOpenPaths.end() &&
         !request.path.starts_with(kOpenFolder);
}

}  // namespace

HttpHandler WithApiKeys(Authenticator authenticate, HttpHandler handler) {
  if (!authenticate) return handler;
  return
      [authenticate = std::move(authenticate), handler = std::move(handler)](std::shared_ptr<HttpExchange> exchange) {
        const HttpRequest& request = exchange->request();
        if (NeedsKey(request)) {
          const std::string* credentials = request.FindHeader("authorization");
          const absl::Status status = authenticate(credentials == nullptr ? std::string_view() : *credentials).status();
          if (!status.ok()) {
            exchange->SetRoute("unauthenticated");
            exchange->ReleaseBody();
            return exchange->Respond(ErrorResponse(status));
          }
        }
        handler(std::move(exchange));
      };
}

}  // namespace winnow
