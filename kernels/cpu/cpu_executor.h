#pragma once
#include <cstddef>
#include <memory>
#include <vector>

#include "kernels/cpu/thread_team.h"
#include "kernels/kernel_table.h"

namespace winnow {

// A 64-byte aligned buffer that only grows, so that steady state does not allocate. Contents are lost when it grows.
class GrowBuffer {
 public:
  GrowBuffer() = default;
  GrowBuffer(GrowBuffer&&) = default;
  GrowBuffer& operator=(GrowBuffer&&) = default;

  // At least `bytes` of memory, valid until the next larger Reserve.
  void* Reserve(size_t bytes);
  template <typename T>
  T* ReserveArray(size_t count) {
    return static_cast<T*>(Reserve(count * sizeof(T)));
  }

 private:
  struct Free {
    void operator()(void* p) const;
  };
  std::unique_ptr<void, Free> data_;
  size_t bytes_ = 0;
};

// The CPU's executor: a thread team, and scratch for the kernels that run on it.
class CpuExecutor final : public Executor {
 public:
  explicit CpuExecutor(int num_threads) : team(num_threads), worker_scratch(num_threads) {}

  // Every Executor of a CPU table is one.
  static CpuExecutor& From(Executor& executor) { return static_cast<CpuExecutor&>(executor); }

  ThreadTeam team;
  // Touched by the calling thread; workers read or fill what it laid out.
  GrowBuffer shared_scratch;
  // [team.size()], each touched by its worker alone.
  std::vector<GrowBuffer> worker_scratch;
};

std::unique_ptr<Executor> NewCpuExecutor(int num_threads);
int CpuNumWorkers(const Executor& executor);
void CpuParallelFor(Executor& executor, int count, void (*body)(void* context, int index, int worker), void* context);

}  // namespace winnow
