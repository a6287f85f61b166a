#pragma once
#include <atomic>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "common/base/status.h"

namespace winnow {

// Calls `work(job)` on `jobs` threads, each of which takes indices in [0, count) from `next()` until there are none
// left. The first error stops the others at their next index and is returned.
class WorkerPool {
 public:
  explicit WorkerPool(size_t count) : count_(count) {}

  // The next index, or `count` when there is none.
  size_t Next() { return failed_ ? count_ : std::min(count_, next_.fetch_add(1)); }

  absl::Status Run(int jobs, const std::function<absl::Status()>& work) {
    std::vector<std::thread> threads;
    for (int job = 0; job < jobs; ++job) {
      threads.emplace_back([&] {
        if (absl::Status status = work(); !status.ok()) {
          failed_ = true;
          std::lock_guard lock(mutex_);
          first_error_.Update(status);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return first_error_;
  }

 private:
  const size_t count_;
  std::atomic<size_t> next_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  absl::Status first_error_;  // guarded by mutex_
};

}  // namespace winnow
