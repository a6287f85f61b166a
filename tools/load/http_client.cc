#include "tools/load/http_client.h"

#include <algorithm>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <optional>

namespace winnow {
namespace {

namespace beast = boost::beast;
namespace http = beast::http;
using Tcp = boost::asio::ip::tcp;

// One request and its answer. Asynchronous underneath, because only that has timeouts.
class Exchange {
 public:
  Exchange(const std::string& address, std::chrono::milliseconds patience, const std::string& api_key,
           const HttpHeaders& headers)
      : host_(address.substr(0, address.rfind(':'))),
        port_(address.substr(address.rfind(':') + 1)),
        patience_(patience),
        api_key_(api_key),
        headers_(headers),
        stream_(context_) {
    parser_.body_limit(uint64_t{1} << 30);
  }

  beast::error_code Send(std::string_view method, const std::string& path, std::string_view body) {
    boost::asio::ip::address host = boost::asio::ip::make_address(host_, error_);
    if (error_) return error_;
    Run([&](auto done) { stream_.async_connect(Tcp::endpoint(host, std::stoi(port_)), done); });
    if (error_) return error_;
    http::request<http::string_body> request(http::string_to_verb({method.data(), method.size()}), path, 11);
    request.set(http::field::host, host_ + ":" + port_);
    request.set(http::field::content_type, "application/json");
    if (!api_key_.empty()) request.set(http::field::authorization, "Bearer " + api_key_);
    for (const auto& [name, value] : headers_) request.set(name, value);
    request.keep_alive(false);
    request.body() = body;
    request.prepare_payload();
    Run([&](auto done) { http::async_write(stream_, request, [done](auto error, size_t) mutable { done(error); }); });
    if (error_) return error_;
    Run([&](auto done) {
      http::async_read_header(stream_, buffer_, parser_, [done](auto error, size_t) mutable { done(error); });
    });
    return error_;
  }

  // Reads what comes next of the body; false at its end.
  bool ReadSome() {
    if (parser_.is_done() || error_) return false;
    Run([&](auto done) {
      http::async_read_some(stream_, buffer_, parser_, [done](auto error, size_t) mutable { done(error); });
    });
    return !error_;
  }

  const http::response<http::string_body>& response() const { return parser_.get(); }
  const beast::error_code& error() const { return error_; }

 private:
  template <class Start>
  void Run(Start start) {
    stream_.expires_after(patience_);
    start([this](beast::error_code error, auto&&...) { error_ = error; });
    context_.restart();
    context_.run();
  }

  const std::string host_, port_;
  const std::chrono::milliseconds patience_;
  const std::string api_key_;
  const HttpHeaders headers_;
  boost::asio::io_context context_;
  beast::tcp_stream stream_;
  beast::flat_buffer buffer_;
  http::response_parser<http::string_body> parser_;
  beast::error_code error_;
};

// nullopt: a comment that keeps the connection alive.
std::optional<ServerSentEvent> ParseEvent(std::string_view text) {
  ServerSentEvent event;
  constexpr std::string_view kId = "id: ", kData = "data: ";
  if (text.starts_with(kId)) {
    const size_t end = std::min(text.find('\n'), text.size() - 1);
    event.id = text.substr(kId.size(), end - kId.size());
    text.remove_prefix(end + 1);
  }
  if (!text.starts_with(kData)) return std::nullopt;
  event.data = text.substr(kData.size());
  return event;
}

HttpReply Failed(const Exchange& exchange) {
  return {.status = 0, .body = "no answer: " + exchange.error().message()};
}

}  // namespace

HttpReply HttpClient::Send(std::string_view method, const std::string& path, std::string_view body) const {
  Exchange exchange(address_, patience_, api_key_, headers_);
  if (exchange.Send(method, path, body)) return Failed(exchange);
  while (exchange.ReadSome()) {
  }
  if (exchange.error()) return Failed(exchange);
  return {.status = static_cast<int>(exchange.response().result_int()), .body = exchange.response().body()};
}

HttpClient HttpClient::With(HttpHeaders headers) const {
  HttpClient client = *this;
  client.headers_.insert(client.headers_.end(), headers.begin(), headers.end());
  return client;
}

HttpReply HttpClient::Stream(const std::string& path, const nlohmann::json& body,
                             const std::function<bool(std::string_view)>& on_event) const {
  return StreamEvents(path, body, [&](const ServerSentEvent& event) { return on_event(event.data); });
}

HttpReply HttpClient::StreamEvents(const std::string& path, const nlohmann::json& body,
                                   const std::function<bool(const ServerSentEvent&)>& on_event) const {
  Exchange exchange(address_, patience_, api_key_, headers_);
  if (exchange.Send("POST", path, body.dump())) return Failed(exchange);
  const http::response<http::string_body>& response = exchange.response();
  HttpReply reply{.status = static_cast<int>(response.result_int()),
                  .body = "",
                  .resume_token = std::string(response["Winnow-Resume"])};
  const bool events = response[http::field::content_type].starts_with("text/event-stream");
  size_t begin = 0;
  bool more = true;
  while (more) {
    more = exchange.ReadSome();
    const std::string& text = response.body();
    for (size_t end; events && (end = text.find("\n\n", begin)) != std::string::npos; begin = end + 2) {
      const std::optional<ServerSentEvent> event = ParseEvent(std::string_view(text).substr(begin, end - begin));
      if (event && !on_event(*event)) return reply;
    }
  }
  if (exchange.error()) {
    reply.status = 0;
    reply.body = Failed(exchange).body;
  } else if (!events) {
    reply.body = response.body();
  }
  return reply;
}

}  // namespace winnow
