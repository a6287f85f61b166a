#include "common/metrics/metrics_server.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <exception>

#include "prometheus/exposer.h"

namespace winnow {
namespace {

// The web server's listening code names no reason for a failure and takes numeric hosts only, so the address is resolved and tried
// here first. Returns the numeric form.
absl::StatusOr<std::string> CheckAddress(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat("metrics address \"", address, "\" is not HOST:PORT"));
  }
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_flags = AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), address.c_str() + colon + 1, &hints, &found); error != 0) {
    return absl::InvalidArgumentError(absl::StrCat("metrics address ", address, ": ", gai_strerror(error)));
  }
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const int error = bind(fd, found->ai_addr, found->ai_addrlen) == 0 && listen(fd, 1) == 0 ? 0 : errno;
  close(fd);
  char numeric[NI_MAXHOST];
  getnameinfo(found->ai_addr, found->ai_addrlen, numeric, sizeof numeric, nullptr, 0, NI_NUMERICHOST);
  const bool ipv6 = found->ai_family == AF_INET6;
  freeaddrinfo(found);
  if (error == EADDRINUSE) return absl::AlreadyExistsError(absl::StrCat("metrics address ", address, " is in use"));
  if (error != 0) {
    return absl::InvalidArgumentError(absl::StrCat("cannot listen on metrics address ", address, ": ", strerror(error)));
  }
  return absl::StrCat(ipv6 ? "[" : "", numeric, ipv6 ? "]" : "", address.substr(colon));
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(const std::string& address,
                                                                    std::shared_ptr<MetricsRegistry> registry) {
  WINNOW_ASSIGN_OR_RETURN(const std::string numeric, CheckAddress(address));
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
