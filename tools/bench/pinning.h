#pragma once
#include <sys/types.h>

#include "common/base/status.h"

namespace winnow {

// Binds every thread that a process has now, and all that they start later, to one core. Threads that are started
// meanwhile by others of them may be missed: call it once the process is up.
absl::Status PinProcess(pid_t pid, int core);

}  // namespace winnow
