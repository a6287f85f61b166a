#include "tools/bench/pinning.h"

#include <sched.h>

#include <cerrno>
#include <filesystem>
#include <string>

namespace winnow {

absl::Status PinProcess(pid_t pid, int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(core, &cores);
  std::error_code gone;
  for (const auto& task : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task", gone)) {
    const pid_t thread = static_cast<pid_t>(std::stol(task.path().filename()));
    if (sched_setaffinity(thread, sizeof cores, &cores) != 0 && errno != ESRCH) {
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot bind thread ", thread, " to core ", core));
    }
  }
  if (gone) return absl::NotFoundError(absl::StrCat("process ", pid, " is gone"));
  return absl::OkStatus();
}

}  // namespace winnow
