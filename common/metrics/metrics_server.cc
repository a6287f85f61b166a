#include "common/metrics/metrics_server.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <exception>
#include <future>

#include "common/config/listen_address.h"
#include "common/config/parse_value.h"
#include "prometheus/exposer.h"

namespace winnow {
namespace {

// Begins a connection to "host:port" and hangs up.
void Knock(const std::string& address) {
  const absl::StatusOr<HostPort> parsed = ParseHostPort(address);
  if (!parsed.ok()) return;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (getaddrinfo(parsed->host.c_str(), std::to_string(parsed->port).c_str(), &hints, &found) != 0) return;
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd >= 0) {
    [[maybe_unused]] const int ignored = connect(fd, found->ai_addr, found->ai_addrlen);
    close(fd);
  }
  freeaddrinfo(found);
}

}  // namespace

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

// The library's thread looks for its order to stop every 2 s, and after each connection.
MetricsServer::~MetricsServer() {
  if (exposer_ == nullptr) return;
  const std::future<void> stopped = std::async(std::launch::async, [this] { exposer_.reset(); });
  while (stopped.wait_for(std::chrono::milliseconds(5)) != std::future_status::ready) Knock(address_);
}

}  // namespace winnow
