#pragma once
#include <cstdint>

namespace winnow {

// Cores that this process may use.
int UsableCores();

// `threads`, or for 0 the cores that this process may use.
int ResolveThreads(int threads);

// Memory that processes can still take: MemAvailable, or what is left of the cgroup's limit where that is less.
int64_t FreeMemoryBytes();

}  // namespace winnow
