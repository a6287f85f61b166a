#pragma once
#include <functional>
#include <memory>
#include <string>

#include "common/base/status.h"
#include "common/config/parse_value.h"
#include "common/metrics/metrics_registry.h"
#include "router/http/http_server.h"
#include "router/http/route_table.h"

namespace winnow {

// What every process answers over HTTP, for Prometheus and for probes: GET /metrics; /ready and /live, 200 or 503 with
// the reason; /health, 200 as long as it answers at all. A router's has two more: /targets, what Prometheus discovers,
// and /ranks.
class ProcessHttp {
 public:
  struct Sources {
    std::function<absl::Status()> ready;
    std::function<absl::Status()> live;
    // The answer to GET /targets of a request that came to `own_address`; absent: there is none.
    std::function<std::string(const std::string& own_address)> targets = nullptr;
    // The answer to GET /ranks; absent: there is none.
    std::function<std::string()> ranks = nullptr;
  };

  // ALREADY_EXISTS when the port is taken, INVALID_ARGUMENT when the address is none of this machine. The sources are
  // asked on the server's thread.
  static absl::StatusOr<std::unique_ptr<ProcessHttp>> Start(const HostPort& address,
                                                            std::shared_ptr<MetricsRegistry> metrics, Sources sources);
  ~ProcessHttp();

  // "host:port" with the port that was chosen.
  const std::string& address() const { return address_; }

 private:
  ProcessHttp() = default;
  std::string address_;
  std::unique_ptr<RouteTable> routes_;
  std::unique_ptr<HttpServer> server_;  // its threads use what is above
};

}  // namespace winnow
