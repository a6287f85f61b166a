#include "cmd/chaos/sandbox/mounts.h"

#include <sched.h>
#include <sys/mount.h>

#include <cerrno>
#include <cstring>

namespace winnow::chaos {

absl::Status TakeOwnMounts() {
  if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
    return absl::PermissionDeniedError(absl::StrCat("cannot have mounts of its own: ", strerror(errno),
                                                    "; this needs root (CAP_SYS_ADMIN and CAP_NET_ADMIN)"));
  }
  return absl::OkStatus();
}

absl::Status MountMemory(const std::string& folder, int64_t bytes) {
  const std::string size = absl::StrCat("mode=1777", bytes > 0 ? absl::StrCat(",size=", bytes) : "");
  if (mount("winnow-chaos", folder.c_str(), "tmpfs", MS_NOSUID | MS_NODEV, size.c_str()) == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("cannot mount a tmpfs at ", folder, ": ", strerror(errno)));
}

}  // namespace winnow::chaos
