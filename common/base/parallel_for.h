#pragma once
#include <algorithm>
#include <cstddef>
#include <functional>

#include "absl/functional/function_ref.h"

namespace winnow {

// Threads that help with a short loop: calls body(i) once for each i < count, in any order and on any of them, and
// returns when all calls have. Empty: there are none. Called by one thread at a time; does not nest.
using ParallelFor = std::function<void(size_t count, absl::FunctionRef<void(size_t)> body)>;

// body(first, number) for ranges that make up [0, count), of `part` each but for the last: by `threads`, where there
// are some and more than one range, else by the calling thread.
inline void ForParts(const ParallelFor& threads, size_t count, size_t part,
                     absl::FunctionRef<void(size_t first, size_t number)> body) {
  const auto run = [&](size_t index) { body(index * part, std::min(part, count - index * part)); };
  const size_t parts = (count + part - 1) / part;
  if (threads != nullptr && parts > 1) return threads(parts, run);
  for (size_t i = 0; i < parts; ++i) run(i);
}

}  // namespace winnow
