#include "common/config/listen_address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "common/config/parse_value.h"

namespace winnow {
namespace {

struct Bound {
  int fd;
  std::string numeric_host;
  uint16_t port;
};

// A socket bound to the address.
absl::StatusOr<Bound> Bind(const std::string& address) {
  WINNOW_ASSIGN_OR_RETURN(const HostPort parsed, ParseHostPort(address));
  addrinfo hints{};
  hints.ai_flags = AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(parsed.host.c_str(), std::to_string(parsed.port).c_str(), &hints, &found);
      error != 0) {
    return absl::InvalidArgumentError(absl::StrCat("cannot listen on ", address, ": ", gai_strerror(error)));
  }
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);  // a port in TIME_WAIT is free
  const int error = bind(fd, found->ai_addr, found->ai_addrlen) == 0 ? 0 : errno;
  freeaddrinfo(found);
  if (error != 0) {
    close(fd);
    if (error == EADDRINUSE) return absl::AlreadyExistsError(absl::StrCat("address ", address, " is in use"));
    return absl::InvalidArgumentError(absl::StrCat("cannot listen on ", address, ": ", strerror(error)));
  }
  sockaddr_storage name{};
  socklen_t size = sizeof name;
  getsockname(fd, reinterpret_cast<sockaddr*>(&name), &size);
  char host[NI_MAXHOST] = "", port[NI_MAXSERV] = "";
  getnameinfo(reinterpret_cast<sockaddr*>(&name), size, host, sizeof host, port, sizeof port,
              NI_NUMERICHOST | NI_NUMERICSERV);
  return Bound{fd, host, static_cast<uint16_t>(std::stoi(port))};
}

}  // namespace

absl::StatusOr<std::string> CheckListenAddress(const std::string& address) {
  WINNOW_ASSIGN_OR_RETURN(const HostPort parsed, ParseHostPort(address));
  WINNOW_ASSIGN_OR_RETURN(const Bound bound, Bind(address));
  const bool listens = listen(bound.fd, 1) == 0;
  close(bound.fd);
  if (!listens) return absl::AlreadyExistsError(absl::StrCat("address ", address, " is in use"));
  return HostPort{bound.numeric_host, parsed.port}.ToString();
}

absl::StatusOr<ReservedAddress> ReservedAddress::Reserve(const std::string& address) {
  WINNOW_RETURN_IF_ERROR(CheckListenAddress(address).status());
  WINNOW_ASSIGN_OR_RETURN(const HostPort parsed, ParseHostPort(address));
  WINNOW_ASSIGN_OR_RETURN(const Bound bound, Bind(address));
  return ReservedAddress(bound.fd, HostPort{parsed.host, bound.port}.ToString());
}

ReservedAddress::~ReservedAddress() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace winnow
