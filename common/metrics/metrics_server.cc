#include "common/metrics/metrics_server.h"

#include <exception>

#include "common/config/listen_address.h"
#include "prometheus/exposer.h"

namespace winnow {
absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(const std::string& address,
                                                                    std::shared_ptr<MetricsRegistry> registry) {
  WINNOW_ASSIGN_OR_RETURN(const std::string numeric, CheckListenAddress(address));
  auto server = std::unique_ptr<MetricsServer>(new MetricsServer);
  server->registry_ = std::move(registry);
  try {
    server->exposer_ = std::make_unique<prometheus::Exposer>(numeric, /*num_threads=*/1);
    server->exposer_->RegisterCollectable(server->registry_);
    const std::vector<int> ports = server->exposer_->GetListeningPorts();
    if (ports.empty()) return absl::InternalError(absl::StrCat("no port is open at metrics address ", address));
    server->address_ = absl::StrCat(address.substr(0, address.rfind(':')), ":", ports.front());
  } catch (const std::exception& error) {
    return absl::AlreadyExistsError(absl::StrCat("cannot listen on metrics address ", address, ": ", error.what()));
  }
  return server;
}

MetricsServer::~MetricsServer() = default;

}  // namespace winnow
