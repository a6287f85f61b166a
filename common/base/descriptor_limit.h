#pragma once
#include <cstdint>

#include "common/base/status.h"

namespace winnow {

// Raises the process's soft limit of open file descriptors to the hard one and returns it. Shells start processes with
// few, for the sake of programs that still use select(). FAILED_PRECONDITION when the limit is below `least`.
absl::StatusOr<uint64_t> RaiseDescriptorLimit(uint64_t least);

}  // namespace winnow
