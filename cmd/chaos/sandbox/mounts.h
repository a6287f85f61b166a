#pragma once
#include <cstdint>
#include <string>

#include "common/base/status.h"

namespace winnow::chaos {

// Gives the process mounts of its own, which end with it and with the processes that it starts from then on. To be
// called before it has other threads. PERMISSION_DENIED says what is needed.
absl::Status TakeOwnMounts();

// Lays a file system in memory over a folder; `bytes` 0: without a limit of its own.
absl::Status MountMemory(const std::string& folder, int64_t bytes);

}  // namespace winnow::chaos
