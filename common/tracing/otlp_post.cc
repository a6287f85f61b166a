#include "common/tracing/otlp_post.h"

// Asio's coroutine headers use std::exchange without including <utility>, so it has to come first.
// clang-format off
#include <utility>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
// clang-format on

#include "absl/strings/str_cat.h"

namespace winnow {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;

constexpr uint16_t kOtlpHttpPort = 4318;
constexpr size_t kMaxAnswerBytes = 1 << 20;

absl::Status VerdictOf(unsigned status) {
  if (status >= 200 && status < 300) return absl::OkStatus();
  const std::string message = absl::StrCat("the collector answers ", status);
  const bool is_later = status == 429 || status == 502 || status == 503 || status == 504;
  return is_later ? absl::UnavailableError(message) : absl::FailedPreconditionError(message);
}

// Throws what Asio says.
asio::awaitable<unsigned> Post(const OtlpEndpoint& endpoint, const std::string& body,
                               std::chrono::milliseconds timeout) {
  const auto executor = co_await asio::this_coro::executor;
  asio::ip::tcp::resolver resolver(executor);
  const auto addresses = co_await resolver.async_resolve(endpoint.address.host, std::to_string(endpoint.address.port),
                                                         asio::use_awaitable);
  beast::tcp_stream stream(executor);
  stream.expires_after(timeout);
  co_await stream.async_connect(addresses, asio::use_awaitable);
  http::request<http::string_body> request(http::verb::post, endpoint.path, 11);
  request.set(http::field::host, endpoint.address.ToString());
  request.set(http::field::content_type, "application/json");
  request.set(http::field::connection, "close");
  request.body() = body;
  request.prepare_payload();
  co_await http::async_write(stream, request, asio::use_awaitable);
  beast::flat_buffer buffer(kMaxAnswerBytes);
  http::response<http::string_body> response;
  co_await http::async_read(stream, buffer, response, asio::use_awaitable);
  co_return response.result_int();
}

}  // namespace

absl::StatusOr<OtlpEndpoint> OtlpEndpoint::Parse(std::string_view url) {
  const auto refuse = [&](const char* why) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", AbslSv(url), "\" ", why, ": expected http://HOST[:PORT][/PATH]"));
  };
  if (url.starts_with("https://")) {
    return absl::UnimplementedError(
        "https is not supported: let a collector on this machine, or in this pod, take the spans by http and send them "
        "on");
  }
  constexpr std::string_view kScheme = "http://";
  if (!url.starts_with(kScheme)) return refuse("does not begin with http://");
  std::string_view rest = url.substr(kScheme.size());
  const size_t slash = rest.find('/');
  std::string_view authority = rest.substr(0, slash);
  std::string_view path = slash == std::string_view::npos ? std::string_view() : rest.substr(slash);
  for (const char c : rest) {
    if (c <= ' ' || c > 0x7e || c == '?' || c == '#' || c == '@')
      return refuse("has characters that do not belong there");
  }
  while (path.ends_with('/')) path.remove_suffix(1);
  const size_t colon = authority.rfind(':');
  const bool has_port = colon != std::string_view::npos && authority.find(']', colon) == std::string_view::npos;
  const std::string with_port = has_port ? std::string(authority) : absl::StrCat(AbslSv(authority), ":", kOtlpHttpPort);
  const absl::StatusOr<HostPort> address = ParseHostPort(with_port);
  if (!address.ok() || address->port == 0) return refuse("names no host and port");
  return OtlpEndpoint{*address, std::string(path) + "/v1/traces"};
}

std::string OtlpEndpoint::ToString() const {
  return absl::StrCat("http://", address.ToString(), path);
}

absl::Status PostJson(const OtlpEndpoint& endpoint, const std::string& body, std::chrono::milliseconds timeout) {
  absl::Status status = absl::UnavailableError("no answer in time");
  asio::io_context context(1);
  const auto on_end = [&](const std::exception_ptr& error, unsigned code) {
    try {
      if (error) std::rethrow_exception(error);
      status = VerdictOf(code);
    } catch (const std::exception& e) {
      status = absl::UnavailableError(e.what());
    }
  };
  asio::co_spawn(context, Post(endpoint, body, timeout), on_end);
  context.run_for(timeout);
  return status;
}

}  // namespace winnow
