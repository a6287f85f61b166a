#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "transport/block_pool.h"

namespace winnow {

// Where other threads leave blocks for an inproc transport. Blocks change hands, payloads are not copied. Its length is
// bounded by the windows of the channels that lead here.
class InprocInbox {
 public:
  // Drops the block when the inbox was shut.
  void Push(BlockPtr block);
  // Appends all blocks to `out`. Cheap when there are none.
  void TakeAll(std::vector<BlockPtr>& out);
  // Nothing comes in any more, and what is here is dropped: it may hold references back to its sender's inbox.
  void Shut();

  // Ends the current or next Sleep.
  void Nudge();
  // Until something was pushed, Nudge was called or the deadline passed.
  void Sleep(std::chrono::steady_clock::time_point deadline);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> not_empty_{false};  // a hint, so that polling takes no lock
  // Guarded by mutex_:
  std::vector<BlockPtr> blocks_;
  bool nudged_ = false;
  bool shut_ = false;
};

// Names an inbox within this process for as long as this object lives.
class InprocRegistration {
 public:
  explicit InprocRegistration(std::weak_ptr<InprocInbox> inbox);
  ~InprocRegistration();
  InprocRegistration(const InprocRegistration&) = delete;
  InprocRegistration& operator=(const InprocRegistration&) = delete;
  uint64_t key() const { return key_; }

  // Null when the inbox is gone or belongs to another process.
  static std::shared_ptr<InprocInbox> Find(uint64_t key);

 private:
  uint64_t key_;
};

}  // namespace winnow
