#include "cmd/chaos/sandbox/network_namespace.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <thread>

namespace winnow::chaos {

absl::StatusOr<NetworkNamespace> NetworkNamespace::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return absl::NotFoundError(absl::StrCat("cannot open ", path, ": ", strerror(errno)));
  return NetworkNamespace(fd);
}

absl::StatusOr<NetworkNamespace> NetworkNamespace::Of(pid_t pid) {
  return Open(absl::StrCat("/proc/", pid, "/ns/net"));
}

absl::Status NetworkNamespace::Enter() const {
  if (setns(fd_->get(), CLONE_NEWNET) == 0) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("cannot enter a network namespace: ", strerror(errno)));
}

absl::Status NetworkNamespace::Run(const std::function<void()>& function) const {
  struct stat there {
  }, here{};
  if (fstat(fd_->get(), &there) == 0 && stat("/proc/thread-self/ns/net", &here) == 0 && there.st_ino == here.st_ino) {
    function();
    return absl::OkStatus();
  }
  absl::Status entered;
  std::thread([&] {
    entered = Enter();
    if (entered.ok()) function();
  }).join();
  return entered;
}

}  // namespace winnow::chaos
