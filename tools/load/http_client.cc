#include "tools/load/http_client.h"

#include <algorithm>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>
#include <charconv>
#include <optional>

namespace winnow {
namespace {

namespace beast = boost::beast;
namespace http = beast::http;
namespace ssl = boost::asio::ssl;
using Tcp = boost::asio::ip::tcp;

// One request and its answer. Asynchronous underneath, because only that has timeouts.
class Exchange {
 public:
  explicit Exchange(const HttpClient::Options& options)
      : host_(options.address.substr(0, options.address.rfind(':'))),
        port_(options.address.substr(options.address.rfind(':') + 1)),
        options_(options),
        stream_(context_) {
    parser_.body_limit(uint64_t{1} << 30);
  }

  beast::error_code Send(std::string_view method, const std::string& path, std::string_view body) {
    const Tcp::resolver::results_type hosts = Tcp::resolver(context_).resolve(host_, port_, error_);
    if (error_) return error_;
    Run([&](auto done) {
      stream_.async_connect(hosts, [done](auto error, const Tcp::endpoint&) mutable { done(error); });
    });
    if (!error_ && !options_.tls_ca.empty()) Encrypt();
    if (error_) return error_;
    http::request<http::string_body> request(http::string_to_verb({method.data(), method.size()}), path, 11);
    request.set(http::field::host, host_ + ":" + port_);
    request.set(http::field::content_type, "application/json");
    if (!options_.api_key.empty()) request.set(http::field::authorization, "Bearer " + options_.api_key);
    for (const auto& [name, value] : options_.headers) request.set(name, value);
    request.keep_alive(false);
    request.body() = body;
    request.prepare_payload();
    OnStream([&](auto& stream) {
      Run([&](auto done) { http::async_write(stream, request, [done](auto error, size_t) mutable { done(error); }); });
      if (error_) return;
      Run([&](auto done) {
        http::async_read_header(stream, buffer_, parser_, [done](auto error, size_t) mutable { done(error); });
      });
    });
    return error_;
  }

  // Reads what comes next of the body; false at its end.
  bool ReadSome() {
    if (parser_.is_done() || error_) return false;
    OnStream([&](auto& stream) {
      Run([&](auto done) {
        http::async_read_some(stream, buffer_, parser_, [done](auto error, size_t) mutable { done(error); });
      });
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
  void Encrypt() {
    tls_.load_verify_file(options_.tls_ca, error_);
    if (error_) return;
    tls_.set_verify_mode(ssl::verify_peer);
    tls_.set_verify_callback(ssl::host_name_verification(host_));
    encrypted_.emplace(stream_, tls_);
    SSL_set_tlsext_host_name(encrypted_->native_handle(), host_.c_str());
    Run([&](auto done) { encrypted_->async_handshake(ssl::stream_base::client, done); });
  }

  template <class Use>
  void OnStream(Use use) {
    if (encrypted_) {
      use(*encrypted_);
    } else {
      use(stream_);
    }
  }

  template <class Start>
  void Run(Start start) {
    if (cancelled_) {
      error_ = boost::asio::error::operation_aborted;
      return;
    }
    stream_.expires_after(options_.patience);
    start([this](beast::error_code error, auto&&...) { error_ = error; });
    context_.restart();
    context_.run();
  }

  const std::string host_, port_;
  const HttpClient::Options& options_;
  boost::asio::io_context context_;
  ssl::context tls_{ssl::context::tls_client};
  beast::tcp_stream stream_;
  std::optional<beast::ssl_stream<beast::tcp_stream&>> encrypted_;
  beast::flat_buffer buffer_;
  http::response_parser<http::string_body> parser_;
  beast::error_code error_;
  bool cancelled_ = false;
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

HttpReply ReplyOf(const Exchange& exchange, std::string body) {
  const http::response<http::string_body>& response = exchange.response();
  HttpReply reply{.status = static_cast<int>(response.result_int()), .body = std::move(body)};
  reply.resume_token = std::string(response["Winnow-Resume"]);
  const auto seconds = response[http::field::retry_after];
  std::from_chars(seconds.data(), seconds.data() + seconds.size(), reply.retry_after_s);
  return reply;
}

}  // namespace

HttpReply HttpClient::Send(std::string_view method, const std::string& path, std::string_view body) const {
  Exchange exchange(options_);
  if (exchange.Send(method, path, body)) return Failed(exchange);
  while (exchange.ReadSome()) {
  }
  if (exchange.error()) return Failed(exchange);
  return ReplyOf(exchange, exchange.response().body());
}

HttpClient HttpClient::With(HttpHeaders headers) const {
  Options options = options_;
  options.headers.insert(options.headers.end(), headers.begin(), headers.end());
  return HttpClient(std::move(options));
}

HttpReply HttpClient::Stream(const std::string& path, const nlohmann::json& body,
                             const std::function<bool(std::string_view)>& on_event, const std::stop_token& stop) const {
  return StreamEvents(
      path, body, [&](const ServerSentEvent& event) { return on_event(event.data); }, stop);
}

HttpReply HttpClient::StreamEvents(const std::string& path, const nlohmann::json& body,
                                   const std::function<bool(const ServerSentEvent&)>& on_event,
                                   const std::stop_token& stop) const {
  Exchange exchange(options_);
  const std::stop_callback cancel(stop, [&exchange] { exchange.Cancel(); });
  if (exchange.Send("POST", path, body.dump())) return Failed(exchange);
  const http::response<http::string_body>& response = exchange.response();
  const bool events = response[http::field::content_type].starts_with("text/event-stream");
  size_t begin = 0;
  bool more = true;
  while (more) {
    more = exchange.ReadSome();
    const std::string& text = response.body();
    for (size_t end; events && (end = text.find("\n\n", begin)) != std::string::npos; begin = end + 2) {
      const std::optional<ServerSentEvent> event = ParseEvent(std::string_view(text).substr(begin, end - begin));
      if (event && !on_event(*event)) return ReplyOf(exchange, "");
    }
  }
  if (exchange.error()) {
    HttpReply reply = ReplyOf(exchange, Failed(exchange).body);
    reply.status = 0;
    return reply;
  }
  return ReplyOf(exchange, events ? "" : response.body());
}

}  // namespace winnow
