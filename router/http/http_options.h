#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "common/tls/tls_files.h"
#include "router/http/http_exchange.h"
#include "router/http/http_message.h"

namespace winnow {

struct HttpServerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8000;            // 0: any free one, see HttpServer::port
  TlsFiles tls = {};               // certificate and key; empty: without TLS
  int num_threads = 2;             // each has its own event loop; a connection stays on one
  size_t max_connections = 20000;  // beyond it: 503 and close
  size_t max_body_bytes = 16 << 20;
  size_t max_bodies_bytes = 256 << 20;  // of all bodies that are held at a time; beyond it: 503 and close
  size_t max_header_bytes = 16 << 10;
  // Unsent bytes a stream may hold; the bytes of one write under way come on top, so a stream costs at most twice this.
  // A stream that exceeds it is cancelled.
  size_t max_stream_buffer_bytes = 1 << 20;
  std::chrono::milliseconds idle_timeout{75'000};    // between requests of a connection
  std::chrono::milliseconds header_timeout{10'000};  // from the first byte of a request to the end of its head
  std::chrono::milliseconds body_timeout{60'000};    // from the end of the head to the end of the body
  std::chrono::milliseconds write_timeout{
      60'000};  // for one write: the client must take at least a buffer in this time
  std::chrono::milliseconds linger_timeout{2'000};  // how long the rest of a refused body is read and dropped
};

// Where the server reports to; empty members are not called. Called from the server's threads, several at once.
struct HttpHooks {
  std::function<void(std::string_view route, std::string_view method, int status, double seconds)> on_request;
  std::function<void(CloseReason reason)> on_cancelled;  // a response that ended before it was complete
  std::function<void(int delta)> on_connections;
  std::function<void(int delta)> on_streams;
  std::function<void(std::string_view message)> on_warning;
};

// Body of an error that the server itself answers with (bad syntax, too large, no such route).
using HttpErrorFormatter = std::function<HttpResponse(int status, std::string_view message)>;
HttpResponse DefaultHttpError(int status, std::string_view message);

using HttpHandler = std::function<void(std::shared_ptr<HttpExchange>)>;

}  // namespace winnow
