#include "kernels/cpu/cpu_executor.h"

#include <sys/mman.h>

#include <cstdlib>

#include "common/base/check.h"

namespace winnow {

void GrowBuffer::Free::operator()(void* p) const {
  std::free(p);
}

void* GrowBuffer::Reserve(size_t bytes) {
  if (bytes > bytes_) {
    constexpr size_t kHugePage = size_t{2} << 20;
    size_t alignment = 64;
    size_t rounded = (bytes + bytes / 2 + 63) / 64 * 64;  // half as much again: growth stays rare
    if (rounded >= kHugePage) {
      alignment = kHugePage;
      rounded = (rounded + kHugePage - 1) / kHugePage * kHugePage;
    }
    data_.reset(std::aligned_alloc(alignment, rounded));
    WINNOW_CHECK(data_ != nullptr);
    if (alignment == kHugePage) madvise(data_.get(), rounded, MADV_HUGEPAGE);
    bytes_ = rounded;
  }
  return data_.get();
}

std::unique_ptr<Executor> NewCpuExecutor(int num_threads) {
  return std::make_unique<CpuExecutor>(num_threads);
}

int CpuNumWorkers(const Executor& executor) {
  return static_cast<const CpuExecutor&>(executor).team.size();
}

void CpuParallelFor(Executor& executor, int count, void (*body)(void* context, int index, int worker), void* context) {
  CpuExecutor::From(executor).team.ParallelFor(count, body, context);
}

}  // namespace winnow
