#include "tools/load/http_client.h"

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>

namespace winnow {
namespace {

namespace beast = boost::beast;
namespace http = beast::http;
using Tcp = boost::asio::ip::tcp;

// One request and its answer. Asynchronous underneath, because only that has timeouts.
class Exchange {
 public:
  Exchange(const std::string& address, std::chrono::milliseconds patience, const std::string& api_key)
      : host_(address.substr(0, address.rfind(':'))),
        port_(address.substr(address.rfind(':') + 1)),
        patience_(patience),
        api_key_(api_key),
        stream_(context_) {
    parser_.body_limit(uint64_t{1} << 30);
  }

  beast::error_code Send(std::string_view method, const std::string& path, std::string_view body) {
    const Tcp::resolver::results_type found = Tcp::resolver(context_).resolve(host_, port_, error_);
    if (error_) return error_;
    Run([&](auto done) {
      stream_.async_connect(found, [done](auto error, const Tcp::endpoint&) mutable { done(error); });
    });
    if (error_) return error_;
    http::request<http::string_body> request(http::string_to_verb({method.data(), method.size()}), path, 11);
    request.set(http::field::host, host_ + ":" + port_);
    request.set(http::field::content_type, "application/json");
    if (!api_key_.empty()) request.set(http::field::authorization, "Bearer " + api_key_);
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

  // From any thread: what is under way ends with an error, and what is begun later does, too.
  void Cancel() {
    boost::asio::post(context_, [this] {
      cancelled_ = true;
      stream_.cancel();
    });
  }

  const http::response<http::string_body>& response() const { return parser_.get(); }
  const beast::error_code& error() const { return error_; }

 private:
  template <class Start>
  void Run(Start start) {
    if (cancelled_) {
      error_ = boost::asio::error::operation_aborted;
      return;
    }
    stream_.expires_after(patience_);
    start([this](beast::error_code error, auto&&...) { error_ = error; });
    context_.restart();
    context_.run();
  }

  const std::string host_, port_;
  const std::chrono::milliseconds patience_;
  const std::string api_key_;
  boost::asio::io_context context_;
  beast::tcp_stream stream_;
  beast::flat_buffer buffer_;
  http::response_parser<http::string_body> parser_;
  beast::error_code error_;
  bool cancelled_ = false;
};

HttpReply Failed(const Exchange& exchange) {
  return {0, "no answer: " + exchange.error().message()};
}

}  // namespace

HttpReply HttpClient::Send(std::string_view method, const std::string& path, std::string_view body) const {
  Exchange exchange(address_, patience_, api_key_);
  if (exchange.Send(method, path, body)) return Failed(exchange);
  while (exchange.ReadSome()) {
  }
  if (exchange.error()) return Failed(exchange);
  return {static_cast<int>(exchange.response().result_int()), exchange.response().body()};
}

HttpReply HttpClient::Stream(const std::string& path, const nlohmann::json& body,
                             const std::function<bool(std::string_view)>& on_event, const std::stop_token& stop) const {
  Exchange exchange(address_, patience_, api_key_);
  const std::stop_callback cancel(stop, [&exchange] { exchange.Cancel(); });
  if (exchange.Send("POST", path, body.dump())) return Failed(exchange);
  const http::response<http::string_body>& response = exchange.response();
  const int status = static_cast<int>(response.result_int());
  const bool events = response[http::field::content_type].starts_with("text/event-stream");
  size_t begin = 0;
  bool more = true;
  while (more) {
    more = exchange.ReadSome();
    const std::string& text = response.body();
    for (size_t end; events && (end = text.find("\n\n", begin)) != std::string::npos; begin = end + 2) {
      std::string_view event = std::string_view(text).substr(begin, end - begin);
      if (!event.starts_with("data: ")) continue;  // a comment that keeps the connection alive
      if (!on_event(event.substr(6))) return {status, ""};
    }
  }
  if (exchange.error()) return Failed(exchange);
  return {status, events ? "" : response.body()};
}

}  // namespace winnow
