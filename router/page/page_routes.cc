#include "router/page/page_routes.h"

#include <string>

#include "router/page/page_files.h"

namespace winnow {
namespace {

constexpr char kContentSecurityPolicy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'";

// If-None-Match is a list of tags, each perhaps weak (W/"..."), or "*". Tags here hold no commas and no quotes.
bool Matches(std::string_view if_none_match, std::string_view etag) {
  return if_none_match == "*" || if_none_match.find(etag) != std::string_view::npos;
}

HttpResponse Answer(const HttpRequest& request, const PageFile& file) {
  HttpResponse response{.content_type = std::string(file.content_type),
                        .headers = {{"ETag", std::string(file.etag)},
                                    {"Cache-Control", "no-cache"},
                                    {"Content-Security-Policy", kContentSecurityPolicy},
                                    {"X-Content-Type-Options", "nosniff"},
                                    {"Referrer-Policy", "no-referrer"}}};
  const std::string* known = request.FindHeader("if-none-match");
  if (known != nullptr && Matches(*known, file.etag)) {
    response.status = 304;
    response.content_type.clear();
  } else {
    response.body = file.body;
  }
  return response;
}

}  // namespace

void AddPageRoutes(RouteTable* routes) {
  for (const PageFile& file : PageFiles()) {
    routes->Add(HttpMethod::kGet, std::string(file.path), [&file](const std::shared_ptr<HttpExchange>& exchange) {
      exchange->Respond(Answer(exchange->request(), file));
    });
  }
}

}  // namespace winnow
