#pragma once
#include <string>
#include <utility>

#include "common/base/status.h"

namespace winnow {

// Tries to listen on "host:port" for a moment and returns the address with a numeric host. Servers call it first
// because the libraries below them do not say why they cannot listen. ALREADY_EXISTS when the port is taken,
// INVALID_ARGUMENT when the text is no address or none of this machine; messages name the address.
absl::StatusOr<std::string> CheckListenAddress(const std::string& address);

// Holds a port until a server listens on it: the port is bound, so that the system gives it to nobody else, but not
// listened on. It serves a process that must tell others its address before it can listen.
class ReservedAddress {
 public:
  // Port 0 is replaced by a free one. Errors as CheckListenAddress.
  static absl::StatusOr<ReservedAddress> Reserve(const std::string& address);
  ReservedAddress(ReservedAddress&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), address_(std::move(other.address_)) {}
  ReservedAddress& operator=(ReservedAddress&&) = delete;
  ~ReservedAddress();

  // "host:port" with the host as it was given.
  const std::string& address() const { return address_; }

 private:
  ReservedAddress(int fd, std::string address) : fd_(fd), address_(std::move(address)) {}
  int fd_;
  std::string address_;
};

}  // namespace winnow
