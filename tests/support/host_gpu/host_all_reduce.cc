#include "tests/support/host_gpu/host_all_reduce.h"

#include <sched.h>

#include <atomic>
#include <bit>
#include <chrono>

#include "kernels/device/params/cache.h"

namespace winnow::test {
namespace {

uint32_t LoadWord(const uint32_t* word) {
  return std::atomic_ref(*const_cast<uint32_t*>(word)).load();
}

// Kernels of host memory are slow: four times as long as they are told.
class BoundedWait {
 public:
  explicit BoundedWait(const device::AddTermsParams& p)
      : p_(p), end_(std::chrono::steady_clock::now() + std::chrono::microseconds(4 * uint64_t{p.timeout_us})) {}

  bool GoOn() const {
    if (p_.error != nullptr && LoadWord(p_.error) != 0) return false;
    const bool aborted = p_.abort != nullptr && LoadWord(p_.abort) != 0;
    if (!aborted && std::chrono::steady_clock::now() < end_) {
      sched_yield();
      return true;
    }
    if (p_.error != nullptr) std::atomic_ref(*p_.error).store(aborted ? device::kWaitAborted : device::kWaitTimedOut);
    return false;
  }

 private:
  const device::AddTermsParams& p_;
  const std::chrono::steady_clock::time_point end_;
};

}  // namespace

void GiveTerm(std::span<const float> term, const device::TermPlaces& places) {
  for (int rank = 0; rank < places.num_ranks; ++rank) {
    for (size_t i = 0; i < term.size(); ++i) {
      const float word = std::bit_cast<uint32_t>(term[i]) == 0 ? -0.0f : term[i];
      std::atomic_ref(places.of_rank[rank][i]).store(word, std::memory_order_release);
    }
  }
}

void TakeTerms(const device::AddTermsParams& p) {
  const BoundedWait wait(p);
  for (size_t i = 0; i < static_cast<size_t>(p.num_rows) * p.hidden_size; ++i) {
    float sum = 0;
    for (int rank = 0; rank < p.num_ranks; ++rank) {
      const std::atomic_ref word(p.terms[rank * p.term_stride + static_cast<int64_t>(i)]);
      float part;
      while (std::bit_cast<uint32_t>(part = word.load(std::memory_order_acquire)) == 0) {
        if (!wait.GoOn()) return;
      }
      word.store(0, std::memory_order_relaxed);
      sum += part;
    }
    p.x[i] += sum;
  }
}

}  // namespace winnow::test
