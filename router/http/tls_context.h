#pragma once
#include <boost/asio/ssl/context.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/tls/tls_files.h"

namespace winnow {

// What an HTTPS server shows its clients: a certificate, TLS 1.2 and 1.3, HTTP/1.1 alone by ALPN. Changed files serve
// the connections that are made from then on. On one thread.
class TlsContext {
 public:
  using Context = std::shared_ptr<boost::asio::ssl::context>;

  // `on_warning` hears, once for each change, why changed files could not be used: the old ones serve on.
  static absl::StatusOr<std::unique_ptr<TlsContext>> Load(const TlsFiles& files,
                                                          std::function<void(std::string_view)> on_warning);

  // For a new connection. Looks at the files when it has not for a second.
  Context Current();

 private:
  using Clock = std::chrono::steady_clock;

  TlsContext(TlsFiles files, std::function<void(std::string_view)> on_warning)
      : files_(std::move(files)), on_warning_(std::move(on_warning)) {}
  // What changes when a file does.
  std::string Version() const;
  absl::StatusOr<Context> Read() const;

  const TlsFiles files_;
  const std::function<void(std::string_view)> on_warning_;
  Context current_;
  std::string version_;
  Clock::time_point next_look_{};
};

}  // namespace winnow
