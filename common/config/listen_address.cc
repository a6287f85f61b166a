#include "common/config/listen_address.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "common/config/parse_value.h"

namespace winnow {

absl::StatusOr<std::string> CheckListenAddress(const std::string& address) {
  WINNOW_ASSIGN_OR_RETURN(HostPort parsed, ParseHostPort(address));
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
  const int error = bind(fd, found->ai_addr, found->ai_addrlen) == 0 && listen(fd, 1) == 0 ? 0 : errno;
  close(fd);
  char numeric[NI_MAXHOST];
  if (getnameinfo(found->ai_addr, found->ai_addrlen, numeric, sizeof numeric, nullptr, 0, NI_NUMERICHOST) == 0) {
    parsed.host = numeric;
  }
  freeaddrinfo(found);
  if (error == EADDRINUSE) return absl::AlreadyExistsError(absl::StrCat("address ", address, " is in use"));
  if (error != 0) {
    return absl::InvalidArgumentError(absl::StrCat("cannot listen on ", address, ": ", strerror(error)));
  }
  return parsed.ToString();
}

}  // namespace winnow
