#pragma once
#include "common/base/parallel_for.h"
#include "kernels/kernel_table.h"

namespace winnow {

// The executor's threads, for loops that are no kernels. Both arguments outlive what is returned.
inline ParallelFor ParallelForOn(const KernelTable& kernels, Executor& executor) {
  return [&kernels, &executor](size_t count, absl::FunctionRef<void(size_t)> body) {
    kernels.parallel_for(
        executor, static_cast<int>(count),
        [](void* context, int index, int) { (*static_cast<absl::FunctionRef<void(size_t)>*>(context))(index); }, &body);
  };
}

}  // namespace winnow
