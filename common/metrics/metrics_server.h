#pragma once
#include <memory>

#include "common/base/status.h"
#include "common/metrics/metrics_registry.h"

namespace prometheus {
class Exposer;
}

namespace winnow {

// Answers GET /metrics with a registry's metrics, from a thread of its own.
class MetricsServer {
 public:
  // `address` is "host:port"; port 0 lets the system choose. ALREADY_EXISTS when the port is taken, INVALID_ARGUMENT
  // when the address is none of this machine.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(const std::string& address,
                                                              std::shared_ptr<MetricsRegistry> registry);
  ~MetricsServer();

  // "host:port" with the port that was chosen.
  const std::string& address() const { return address_; }

 private:
  MetricsServer() = default;
  std::string address_;
  std::shared_ptr<MetricsRegistry> registry_;
  std::unique_ptr<prometheus::Exposer> exposer_;
};

}  // namespace winnow
