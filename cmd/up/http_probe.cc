#include "cmd/up/http_probe.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "cmd/up/child_process.h"
#include "common/config/parse_value.h"

namespace winnow {
namespace {

using Clock = std::chrono::steady_clock;

bool Await(int fd, short events, Clock::time_point until) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
  pollfd entry{fd, events, 0};
  return left.count() > 0 && poll(&entry, 1, static_cast<int>(left.count())) > 0;
}

}  // namespace

absl::StatusOr<HttpAnswer> HttpGet(const std::string& address, const std::string& path,
                                   std::chrono::milliseconds timeout) {
  const Clock::time_point until = Clock::now() + timeout;
  const absl::Status silent = absl::UnavailableError(absl::StrCat("no answer from http://", address, path));
  WINNOW_ASSIGN_OR_RETURN(const HostPort parsed, ParseHostPort(address));
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(parsed.host.c_str(), std::to_string(parsed.port).c_str(), &hints, &found) != 0) return silent;
  const UniqueFd fd(socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const bool connecting = connect(fd.get(), found->ai_addr, found->ai_addrlen) == 0 || errno == EINPROGRESS;
  freeaddrinfo(found);
  if (!connecting || !Await(fd.get(), POLLOUT, until)) return silent;
  const std::string request =
      absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: ", address, "\r\nConnection: close\r\n\r\n");
  if (send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(request.size()))
    return silent;
  std::string answer;
  char buffer[4096];
  while (Await(fd.get(), POLLIN, until)) {
    const ssize_t n = read(fd.get(), buffer, sizeof buffer);
    if (n <= 0) break;
    answer.append(buffer, n);
    // Enough: the answer to a probe is short, and a server may keep the connection open all the same.
    const size_t head = answer.find("\r\n\r\n");
    const size_t length = answer.find("ontent-Length: ");
    if (head != std::string::npos && length < head &&
        answer.size() >= head + 4 + std::strtoul(answer.c_str() + length + 15, nullptr, 10)) {
      break;
    }
  }
  const size_t head = answer.find("\r\n\r\n");
  if (answer.compare(0, 5, "HTTP/") != 0 || answer.size() < 12 || head == std::string::npos) return silent;
  return HttpAnswer{std::atoi(answer.c_str() + 9), answer.substr(head + 4)};
}

}  // namespace winnow
