#include "tests/support/free_port.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <random>
#include <set>

namespace winnow {
namespace {

constexpr int kFirst = 20000, kLast = 32000;  // Linux gives out 32768 and above

bool IsFree(uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  const int on = 1;  // what was left by a connection that has ended is no hindrance
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  const bool is_free = bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  close(fd);
  return is_free;
}

}  // namespace

// At random, as tests of other processes look for ports at the same time.
uint16_t FreePort() {
  static std::set<int> given;
  static std::mt19937 random(std::random_device{}());
  for (int attempt = 0; attempt < 1000; ++attempt) {
    const int port = std::uniform_int_distribution<int>(kFirst, kLast)(random);
    if (!given.contains(port) && IsFree(static_cast<uint16_t>(port))) {
      given.insert(port);
      return static_cast<uint16_t>(port);
    }
  }
  ADD_FAILURE() << "no port from " << kFirst << " to " << kLast << " is free";
  return 0;
}

}  // namespace winnow
