#pragma once
#include <cstddef>
#include <functional>

#include "absl/functional/function_ref.h"

namespace winnow {

// Threads that help with a short loop: calls body(i) once for each i < count, in any order and on any of them, and
// returns when all calls have. Empty: there are none. Called by one thread at a time; does not nest.
using ParallelFor = std::function<void(size_t count, absl::FunctionRef<void(size_t)> body)>;

}  // namespace winnow
