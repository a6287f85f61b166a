#pragma once
#include <cstddef>

#include "kernels/kernel_table.h"

namespace winnow {

// Seconds in which all threads of the executor together sum a region of that many bytes (rounded up to whole MiB) once,
// best of several passes over it: the least time of a step that has to read as much. Small regions come from a cache.
double MachineReadSeconds(const KernelTable& kernels, Executor& executor, size_t bytes);

}  // namespace winnow
