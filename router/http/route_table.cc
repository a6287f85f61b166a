#include "router/http/route_table.h"

#include "absl/strings/match.h"
#include "common/base/status.h"

namespace winnow {
namespace {

bool Matches(std::string_view pattern, std::string_view path) {
  if (!pattern.ends_with("/*")) return path == pattern;
  const std::string_view prefix = pattern.substr(0, pattern.size() - 1);
  return path.size() > prefix.size() && path.starts_with(prefix);
}

}  // namespace

void RouteTable::Add(HttpMethod method, std::string pattern, HttpHandler handler) {
  routes_.push_back({method, std::move(pattern), std::move(handler)});
}

void RouteTable::Dispatch(std::shared_ptr<HttpExchange> exchange) const {
  const HttpRequest& request = exchange->request();
  const HttpMethod wanted = request.method == HttpMethod::kHead ? HttpMethod::kGet : request.method;
  std::string allowed;
  for (const Route& route : routes_) {
    if (!Matches(route.pattern, request.path)) continue;
    exchange->SetRoute(route.pattern);
    if (route.method == wanted) return route.handler(std::move(exchange));
    absl::StrAppend(&allowed, AbslSv(MethodName(route.method)), route.method == HttpMethod::kGet ? ", HEAD, " : ", ");
  }
  if (allowed.empty()) {
    exchange->SetRoute("unknown");
    return exchange->Respond(format_error_(404, absl::StrCat("There is nothing at ", request.path, ".")));
  }
  allowed += "OPTIONS";
  if (request.method == HttpMethod::kOptions) {
    return exchange->Respond({.status = 204, .content_type = "", .headers = {{"Allow", allowed}}});
  }
  HttpResponse response =
      format_error_(405, absl::StrCat(request.path, " does not support this method; it supports ", allowed, "."));
  response.headers.push_back({"Allow", allowed});
  exchange->Respond(std::move(response));
}

std::string PathTail(const HttpRequest& request, std::string_view prefix) {
  std::string tail;
  if (request.path.size() <= prefix.size()) return tail;
  if (!PercentDecode(std::string_view(request.path).substr(prefix.size()), &tail)) tail.clear();
  return tail;
}

}  // namespace winnow
