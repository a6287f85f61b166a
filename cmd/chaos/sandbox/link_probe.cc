#include "cmd/chaos/sandbox/link_probe.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <vector>

namespace winnow::chaos {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

sockaddr_in NameOf(const HostPort& address) {
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_port = htons(address.port);
  inet_pton(AF_INET, address.host.c_str(), &name.sin_addr);
  return name;
}

int TimeUntil(Clock::time_point until) {
  return static_cast<int>(std::max<int64_t>(0, std::chrono::ceil<milliseconds>(until - Clock::now()).count()));
}

// A connected socket that does not block; -1: none within the limit.
UniqueFd ConnectWithin(const HostPort& to, Clock::time_point until) {
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const sockaddr_in name = NameOf(to);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name) == 0) return fd;
  pollfd entry{fd.get(), POLLOUT, 0};
  int error = 0;
  socklen_t size = sizeof error;
  const bool connected = errno == EINPROGRESS && poll(&entry, 1, TimeUntil(until)) > 0 &&
                         getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0;
  return connected ? std::move(fd) : UniqueFd();
}

}  // namespace

bool Connects(const NetworkNamespace& from, const HostPort& to, milliseconds limit) {
  bool connected = false;
  return from.Run([&] { connected = ConnectWithin(to, Clock::now() + limit).get() >= 0; }).ok() && connected;
}

absl::StatusOr<double> MeasureRate(const NetworkNamespace& from, const NetworkNamespace& to, const std::string& address,
                                   int64_t bytes, milliseconds limit) {
  const Clock::time_point until = Clock::now() + limit;
  UniqueFd listener;
  HostPort name{address, 0};
  WINNOW_RETURN_IF_ERROR(to.Run([&] {
    listener = UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in own = NameOf(name);
    socklen_t size = sizeof own;
    if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&own), sizeof own) != 0 ||
        listen(listener.get(), 1) != 0 || getsockname(listener.get(), reinterpret_cast<sockaddr*>(&own), &size) != 0) {
      listener.Reset();
    }
    name.port = ntohs(own.sin_port);
  }));
  if (listener.get() < 0) return absl::UnavailableError("cannot listen at " + address);
  // A socket stays in the namespace where it was made, so that only connecting needs to be there.
  UniqueFd out;
  WINNOW_RETURN_IF_ERROR(from.Run([&] { out = ConnectWithin(name, until); }));
  if (out.get() < 0) return absl::UnavailableError("no connection to " + address);
  const UniqueFd in(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  const std::vector<char> block(1 << 16);
  const Clock::time_point begin = Clock::now();
  std::jthread sender([&](const std::stop_token& over) {
    for (int64_t left = bytes; left > 0 && Clock::now() < until && !over.stop_requested();) {
      const ssize_t sent =
          send(out.get(), block.data(), std::min<size_t>(block.size(), static_cast<size_t>(left)), MSG_NOSIGNAL);
      if (sent > 0) left -= sent;
      pollfd entry{out.get(), POLLOUT, 0};
      if (sent <= 0 && poll(&entry, 1, 50) < 0) return;
    }
  });
  std::vector<char> buffer(block.size());
  int64_t received = 0;
  while (received < bytes && Clock::now() < until) {
    const ssize_t got = recv(in.get(), buffer.data(), buffer.size(), 0);
    if (got == 0) break;
    if (got > 0) received += got;
    pollfd entry{in.get(), POLLIN, 0};
    if (got < 0 && poll(&entry, 1, TimeUntil(until)) < 0) break;
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  if (received < bytes) return absl::UnavailableError(absl::StrCat(received, " of ", bytes, " bytes came"));
  return 8 * static_cast<double>(bytes) / seconds;
}

}  // namespace winnow::chaos
