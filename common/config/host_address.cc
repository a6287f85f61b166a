#include "common/config/host_address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <tuple>

#include "absl/strings/str_split.h"

namespace winnow {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

absl::StatusOr<AddressList> Lookup(const HostPort& address, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  if (error != 0) {
    return absl::UnavailableError(absl::StrCat("cannot resolve ", address.host, ": ", gai_strerror(error)));
  }
  return AddressList(found, &freeaddrinfo);
}

std::string NumericHost(const sockaddr* address, socklen_t size) {
  char host[NI_MAXHOST] = "";
  getnameinfo(address, size, host, sizeof host, nullptr, 0, NI_NUMERICHOST);
  return host;
}

}  // namespace

bool IsLoopbackHost(std::string_view text) {
  const std::string host(text);
  if (host == "localhost") return true;
  in_addr v4{};
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
  in6_addr v6{};
  return inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

bool IsWildcardHost(std::string_view text) {
  const std::string host(text);
  in_addr v4{};
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return v4.s_addr == INADDR_ANY;
  in6_addr v6{};
  return inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_UNSPECIFIED(&v6);
}

absl::StatusOr<std::vector<HostPort>> ParseHostPorts(std::string_view text) {
  std::vector<HostPort> addresses;
  for (const absl::string_view part : absl::StrSplit(AbslSv(text), ',')) {
    WINNOW_ASSIGN_OR_RETURN(HostPort address, ParseHostPort(StdSv(absl::StripAsciiWhitespace(part))));
    addresses.push_back(std::move(address));
  }
  return addresses;
}

std::string ToString(const std::vector<HostPort>& addresses) {
  std::string text;
  for (const HostPort& address : addresses) absl::StrAppend(&text, text.empty() ? "" : ",", address.ToString());
  return text;
}

absl::StatusOr<std::vector<HostPort>> ResolveHost(const HostPort& address) {
  WINNOW_ASSIGN_OR_RETURN(const AddressList found, Lookup(address, 0));
  std::vector<std::pair<bool, HostPort>> numeric;
  for (const addrinfo* each = found.get(); each != nullptr; each = each->ai_next) {
    numeric.push_back(
        {each->ai_family == AF_INET6, HostPort{NumericHost(each->ai_addr, each->ai_addrlen), address.port}});
  }
  std::sort(numeric.begin(), numeric.end(), [](const auto& a, const auto& b) {
    return std::tie(a.first, a.second.host) < std::tie(b.first, b.second.host);
  });
  std::vector<HostPort> addresses;
  for (auto& [is_ipv6, each] : numeric) {
    if (addresses.empty() || !(addresses.back() == each)) addresses.push_back(std::move(each));
  }
  return addresses;
}

absl::StatusOr<std::string> LocalHostTowards(const HostPort& remote) {
  WINNOW_ASSIGN_OR_RETURN(const AddressList found, Lookup(remote, AI_NUMERICHOST));
  // Connecting a datagram socket sends nothing: it chooses the route, and with it the address of this side.
  const int fd = socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return absl::UnavailableError(absl::StrCat("cannot open a socket: ", strerror(errno)));
  sockaddr_storage local{};
  socklen_t size = sizeof local;
  const bool routed = connect(fd, found->ai_addr, found->ai_addrlen) == 0 &&
                      getsockname(fd, reinterpret_cast<sockaddr*>(&local), &size) == 0;
  const int error = errno;
  close(fd);
  if (!routed) return absl::UnavailableError(absl::StrCat("there is no route to ", remote.host, ": ", strerror(error)));
  return NumericHost(reinterpret_cast<const sockaddr*>(&local), size);
}

}  // namespace winnow
