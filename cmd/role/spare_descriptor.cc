#include "cmd/role/spare_descriptor.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <mutex>

#include "common/base/logging.h"

namespace winnow {
namespace {

using Clock = std::chrono::steady_clock;

int Accept(int listener, sockaddr* address, socklen_t* address_bytes, int flags) {
  return static_cast<int>(syscall(SYS_accept4, listener, address, address_bytes, flags));
}

class SpareDescriptor {
 public:
  static SpareDescriptor& Instance() {
    static SpareDescriptor spare;
    return spare;
  }

  void Keep() {
    const std::lock_guard lock(mutex_);
    Open();
  }

  // Sends away all who wait at a socket that does not block. Where another thread has taken the spare descriptor's
  // place they wait on, until the next one comes. False for a socket that blocks.
  bool SendAway(int listener) {
    const std::lock_guard lock(mutex_);
    if ((fcntl(listener, F_GETFL) & O_NONBLOCK) == 0) return false;
    Open();
    if (descriptor_ >= 0) {
      close(descriptor_);
      descriptor_ = -1;
      for (int peer; (peer = Accept(listener, nullptr, nullptr, SOCK_CLOEXEC)) >= 0; ++sent_away_) close(peer);
      Open();
    }
    Complain();
    return true;
  }

 private:
  static constexpr std::chrono::seconds kComplaintInterval{10};

  void Open() {
    if (descriptor_ < 0) descriptor_ = open("/dev/null", O_RDONLY | O_CLOEXEC);
  }

  void Complain() {
    const Clock::time_point now = Clock::now();
    if (now < next_complaint_) return;
    next_complaint_ = now + kComplaintInterval;
    spdlog::warn(
        "no file descriptor is left: {} connections to the gRPC port were sent away so far; raise the hard limit "
        "(ulimit -Hn, LimitNOFILE=)",
        sent_away_);
  }

  std::mutex mutex_;
  // Guarded by mutex_.
  int descriptor_ = -1;
  unsigned long sent_away_ = 0;
  Clock::time_point next_complaint_;
};

}  // namespace

void KeepSpareDescriptor() {
  SpareDescriptor::Instance().Keep();
}

}  // namespace winnow

// In the place of the C library's, for gRPC's library, too.
extern "C" int accept4(int listener, sockaddr* address, socklen_t* address_bytes, int flags) {
  const int accepted = winnow::Accept(listener, address, address_bytes, flags);
  if (accepted >= 0 || (errno != EMFILE && errno != ENFILE)) return accepted;
  const int error = errno;
  errno = winnow::SpareDescriptor::Instance().SendAway(listener) ? EAGAIN : error;
  return -1;
}
