#include "router/http/cors.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace winnow {
namespace {

// Forwards to the real exchange, with more headers in the answer.
class CorsExchange final : public HttpExchange {
 public:
  CorsExchange(std::shared_ptr<HttpExchange> exchange, std::vector<HttpHeader> headers)
      : exchange_(std::move(exchange)), headers_(std::move(headers)) {}

  const HttpRequest& request() const override { return exchange_->request(); }
  void ReleaseBody() override { exchange_->ReleaseBody(); }
  void Respond(HttpResponse response) override { exchange_->Respond(WithHeaders(std::move(response))); }
  void StartStream(HttpResponse head) override { exchange_->StartStream(WithHeaders(std::move(head))); }
  bool Write(std::string_view data) override { return exchange_->Write(data); }
  void Finish() override { exchange_->Finish(); }
  bool open() const override { return exchange_->open(); }
  void OnClose(std::function<void(CloseReason)> callback) override { exchange_->OnClose(std::move(callback)); }
  void Post(std::function<void()> task) override { exchange_->Post(std::move(task)); }
  void SetRoute(std::string_view route) override { exchange_->SetRoute(route); }

 private:
  HttpResponse WithHeaders(HttpResponse response) const {
    response.headers.insert(response.headers.end(), headers_.begin(), headers_.end());
    return response;
  }

  const std::shared_ptr<HttpExchange> exchange_;
  const std::vector<HttpHeader> headers_;
};

bool AllowsAll(const CorsPolicy& policy) {
  return std::find(policy.origins.begin(), policy.origins.end(), "*") != policy.origins.end();
}

// Value of Access-Control-Allow-Origin; nullopt where the origin is not allowed.
std::optional<std::string> AllowedOrigin(const CorsPolicy& policy, const std::string& origin) {
  if (AllowsAll(policy)) return "*";
  if (std::find(policy.origins.begin(), policy.origins.end(), origin) == policy.origins.end()) return std::nullopt;
  return origin;
}

}  // namespace

HttpHandler WithCors(CorsPolicy policy, HttpHandler handler) {
  if (policy.origins.empty()) return handler;
  return [policy = std::move(policy), handler = std::move(handler)](std::shared_ptr<HttpExchange> exchange) {
    const HttpRequest& request = exchange->request();
    std::vector<HttpHeader> headers;
    // What a cache keeps for one page is not another's.
    if (!AllowsAll(policy)) headers.push_back({"Vary", "Origin"});
    const std::string* origin = request.FindHeader("origin");
    const auto allowed = origin == nullptr ? std::nullopt : AllowedOrigin(policy, *origin);
    if (allowed) {
      headers.push_back({"Access-Control-Allow-Origin", *allowed});
      headers.push_back({"Access-Control-Expose-Headers", "x-request-id, Retry-After, Winnow-Resume"});
      if (request.method == HttpMethod::kOptions && request.FindHeader("access-control-request-method") != nullptr) {
        exchange->SetRoute("preflight");
        headers.push_back({"Access-Control-Allow-Methods", "GET, HEAD, POST, OPTIONS"});
        // Clients send headers of their own (x-stainless-...): whatever is asked for may come.
        const std::string* asked = request.FindHeader("access-control-request-headers");
        headers.push_back({"Access-Control-Allow-Headers", asked == nullptr ? "*" : *asked});
        headers.push_back({"Access-Control-Max-Age", "600"});
        return exchange->Respond({.status = 204, .content_type = "", .headers = std::move(headers)});
      }
    }
    if (headers.empty()) return handler(std::move(exchange));
    handler(std::make_shared<CorsExchange>(std::move(exchange), std::move(headers)));
  };
}

}  // namespace winnow
