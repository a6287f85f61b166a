#pragma once
#include <chrono>
#include <functional>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/json.h"

namespace winnow {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpReply {
  int status = 0;  // 0: no answer, or not all of it, and `body` says why
  std::string body;
  int retry_after_s = 0;          // what the header says, in seconds; 0: nothing
  std::string resume_token = {};  // of the header Winnow-Resume
  // The body as JSON; null when it is none.
  nlohmann::json json() const { return ParseJson(body); }
};

struct ServerSentEvent {
  std::string_view data, id;  // id: empty where it has none
};

// A blocking HTTP client with one connection per request. Thread-safe. Nothing comes for `patience`: status 0.
class HttpClient {
 public:
  struct Options {
    std::string address;  // host:port, where the host may be a name
    std::chrono::milliseconds patience = std::chrono::seconds(120);
    std::string api_key = {};  // goes along as a bearer token
    std::string tls_ca = {};   // file (PEM) of those who sign the server's certificate; empty: no TLS
    HttpHeaders headers = {};
  };
  explicit HttpClient(Options options) : options_(std::move(options)) {}
  // `api_key`, where there is one, goes along as a bearer token.
  explicit HttpClient(std::string address, std::chrono::milliseconds patience = std::chrono::seconds(120),
                      std::string api_key = "")
      : HttpClient(Options{std::move(address), patience, std::move(api_key)}) {}

  HttpReply Get(const std::string& path) const { return Send("GET", path, ""); }
  HttpReply Post(const std::string& path, const nlohmann::json& body) const { return Send("POST", path, body.dump()); }
  HttpReply Send(std::string_view method, const std::string& path, std::string_view body) const;

  // The same client, whose requests carry these headers too.
  HttpClient With(HttpHeaders headers) const;

  // Calls `on_event` with the data of each server-sent event as it comes, "[DONE]" included; when it answers false, the
  // connection is closed there and then, and as soon as `stop` is requested, too: status 0. The body of the reply is
  // only filled for answers that are no event stream.
  HttpReply Stream(const std::string& path, const nlohmann::json& body,
                   const std::function<bool(std::string_view)>& on_event, const std::stop_token& stop = {}) const;
  HttpReply StreamEvents(const std::string& path, const nlohmann::json& body,
                         const std::function<bool(const ServerSentEvent&)>& on_event,
                         const std::stop_token& stop = {}) const;

 private:
  Options options_;
};

}  // namespace winnow
