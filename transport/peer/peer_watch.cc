#include "transport/peer/peer_watch.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace winnow::device {

absl::StatusOr<std::unique_ptr<PeerWatch>> PeerWatch::Start(pid_t pid, int socket, std::function<void()> on_end) {
  WINNOW_CHECK(pid > 0 || socket >= 0);
  int process = -1;
  if (pid > 0) {
    process = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
    if (process < 0 && errno == ESRCH) return absl::UnavailableError(absl::StrCat("process ", pid, " has ended"));
    // Without pidfd (Linux before 5.3, or forbidden) the socket is enough.
    if (process < 0 && socket < 0) {
      return absl::FailedPreconditionError(absl::StrCat("process ", pid,
                                                        " cannot be watched (pidfd_open: ", std::strerror(errno),
                                                        ") and there is no socket whose end would tell"));
    }
  }
  const int stop = eventfd(0, EFD_CLOEXEC);
  WINNOW_CHECK(stop >= 0);
  return std::unique_ptr<PeerWatch>(new PeerWatch(process, socket, stop, std::move(on_end)));
}

PeerWatch::PeerWatch(int process, int socket, int stop, std::function<void()> on_end)
    : process_(process), socket_(socket), stop_(stop), on_end_(std::move(on_end)), thread_([this] { Run(); }) {}

PeerWatch::~PeerWatch() {
  const uint64_t one = 1;
  WINNOW_CHECK(write(stop_, &one, sizeof(one)) == sizeof(one));
  thread_.join();
  close(stop_);
  if (process_ >= 0) close(process_);
}

void PeerWatch::Run() {
  // Negative descriptors are passed over by poll.
  pollfd watched[] = {{stop_, POLLIN, 0}, {process_, POLLIN, 0}, {socket_, POLLRDHUP, 0}};
  while (poll(watched, 3, -1) < 0) {
    if (errno != EINTR) return;
  }
  if (watched[0].revents == 0) on_end_();
}

}  // namespace winnow::device
