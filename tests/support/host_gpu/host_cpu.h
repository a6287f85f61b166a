#pragma once
#include <memory>

#include "kernels/kernel_table.h"

// The CPU backend's kernels, which do most of what a GPU of host memory is asked for.
namespace winnow::test {

inline const KernelTable& Cpu() {
  static const KernelTable& table = **CpuKernels();
  return table;
}
// Of the calling thread, which is all of it.
inline Executor& Team() {
  thread_local const std::unique_ptr<Executor> team = Cpu().new_executor(1);
  return *team;
}

}  // namespace winnow::test
