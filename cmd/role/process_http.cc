#include "cmd/role/process_http.h"

#include "common/base/json.h"
#include "common/config/listen_address.h"

namespace winnow {
namespace {

using Exchange = std::shared_ptr<HttpExchange>;

// For a scrape under way.
constexpr std::chrono::milliseconds kLastWords{100};

HttpResponse Verdict(const char* name, const absl::Status& status) {
  using Json = nlohmann::ordered_json;
  if (status.ok()) return {.body = Json{{"status", name}}.dump()};
  const Json body{{"status", absl::StrCat("not ", name)}, {"reason", std::string(status.message())}};
  return {.status = 503, .body = body.dump(-1, ' ', false, Json::error_handler_t::replace)};
}

}  // namespace

absl::StatusOr<std::unique_ptr<ProcessHttp>> ProcessHttp::Start(const HostPort& address,
                                                                std::shared_ptr<MetricsRegistry> metrics,
                                                                Sources sources) {
  WINNOW_ASSIGN_OR_RETURN(const std::string numeric, CheckListenAddress(address.ToString()));
  WINNOW_ASSIGN_OR_RETURN(const HostPort listen, ParseHostPort(numeric));
  auto http = std::unique_ptr<ProcessHttp>(new ProcessHttp);
  http->routes_ = std::make_unique<RouteTable>();
  http->routes_->Add(HttpMethod::kGet, "/metrics", [metrics](const Exchange& exchange) {
    exchange->Respond({.content_type = "text/plain; version=0.0.4; charset=utf-8", .body = metrics->RenderText()});
  });
  http->routes_->Add(HttpMethod::kGet, "/ready", [ready = sources.ready](const Exchange& exchange) {
    exchange->Respond(Verdict("ready", ready()));
  });
  http->routes_->Add(HttpMethod::kGet, "/live",
                     [live = sources.live](const Exchange& exchange) { exchange->Respond(Verdict("live", live())); });
  http->routes_->Add(HttpMethod::kGet, "/health",
                     [](const Exchange& exchange) { exchange->Respond({.body = R"({"status":"ok"})"}); });
  if (sources.targets) {
    http->routes_->Add(HttpMethod::kGet, "/targets",
                       [targets = sources.targets, self = http.get()](const Exchange& exchange) {
                         const std::string* host = exchange->request().FindHeader("host");
                         exchange->Respond({.body = targets(host != nullptr ? *host : self->address_)});
                       });
  }
  if (sources.ranks) {
    http->routes_->Add(HttpMethod::kGet, "/ranks",
                       [ranks = sources.ranks](const Exchange& exchange) { exchange->Respond({.body = ranks()}); });
  }
  HttpServerOptions options;
  options.host = listen.host;
  options.port = listen.port;
  options.num_threads = 1;
  options.max_connections = 64;
  options.max_body_bytes = 4 << 10;
  options.max_bodies_bytes = 1 << 20;
  absl::StatusOr<std::unique_ptr<HttpServer>> server = HttpServer::Start(
      options, [routes = http->routes_.get()](Exchange exchange) { routes->Dispatch(std::move(exchange)); });
  if (!server.ok()) return Annotate(server.status(), "metrics address");
  http->server_ = *std::move(server);
  http->address_ = HostPort{address.host, http->server_->port()}.ToString();
  return http;
}

ProcessHttp::~ProcessHttp() {
  if (server_ != nullptr) server_->Stop(kLastWords);
}

}  // namespace winnow
