#pragma once
#include <chrono>
#include <cstdint>
#include <memory>

#include "common/base/status.h"
#include "router/http/http_options.h"

namespace winnow {

// HTTP/1.1 server: keep-alive, chunked streams, limits on everything a client controls. It knows nothing of what it
// serves.
class HttpServer {
 public:
  // Listens and serves at once. FAILED_PRECONDITION names address and reason when it cannot listen there (port in use,
  // ...), INVALID_ARGUMENT the file of options.tls that cannot be used. `handler` is called on the connections' threads
  // and must not block; see HttpExchange.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(HttpServerOptions options, HttpHandler handler,
                                                           HttpHooks hooks = {},
                                                           HttpErrorFormatter format_error = DefaultHttpError);
  ~HttpServer();

  uint16_t port() const;

  // Accepts no more connections, lets pending responses finish until `grace` is over, then closes what is left. Returns
  // when every exchange is closed. Must not be called from a handler. A second call returns at once.
  void Stop(std::chrono::milliseconds grace);

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace winnow
