#pragma once
#include <functional>
#include <mutex>
#include <vector>

namespace winnow {

// Work that other threads hand to the engine thread. Put returns false after Close, when nothing will run any more.
class Mailbox {
 public:
  explicit Mailbox(std::function<void()> wake) : wake_(std::move(wake)) {}

  bool Put(std::function<void()> work) {
    {
      std::lock_guard lock(mutex_);
      if (closed_) return false;
      work_.push_back(std::move(work));
    }
    wake_();
    return true;
  }
  // Owner: runs what has come.
  void Drain() {
    std::vector<std::function<void()>> work;
    {
      std::lock_guard lock(mutex_);
      work.swap(work_);
    }
    for (auto& item : work) item();
  }
  void Close() {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }

 private:
  const std::function<void()> wake_;
  std::mutex mutex_;
  // Guarded by mutex_.
  std::vector<std::function<void()>> work_;
  bool closed_ = false;
};

}  // namespace winnow
