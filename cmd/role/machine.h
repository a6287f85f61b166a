#pragma once
#include <cstdint>

namespace winnow {

// Cores that this process may use.
int UsableCores();

// Memory that processes can still take: MemAvailable, or what is left of the cgroup's limit where that is less.
int64_t FreeMemoryBytes();

}  // namespace winnow
