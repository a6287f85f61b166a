#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>

namespace winnow {

// Calls that must be made in the end, although whom they are for may have stopped for a while: those of one address in
// the order in which they were added, each again and again until it has an answer. An address without an answer is left
// alone for a pause that doubles, so that the calls of others go on. Thread-safe; calls are made on a thread of its
// own, one after the other.
class RetriedCalls {
 public:
  // Makes the call, within a limit of its own. False: there was no answer, and another call may have one.
  using Call = std::function<bool()>;
  struct Options {
    // Before an address that has not answered is called again, at first and at most: it doubles with every call.
    std::chrono::milliseconds first_pause{100};
    std::chrono::milliseconds longest_pause{5000};
    // A call that has had no answer for so long is given up.
    std::chrono::milliseconds patience{300'000};
    size_t max_queued = 4096;
  };
  enum class AtStop : uint8_t {
    kDrop,  // what is queued
    kMake,  // it, once, but for what is queued behind a call that has no answer
  };

  explicit RetriedCalls(const Options& options);
  ~RetriedCalls();  // drops what is queued
  RetriedCalls(const RetriedCalls&) = delete;
  RetriedCalls& operator=(const RetriedCalls&) = delete;

  // Drops the call where as many as may be are queued, and after Stop.
  void Add(const std::string& address, Call call);
  // Returns when the call under way, and those that are still to be made, are over. Idempotent.
  void Stop(AtStop at_stop);

 private:
  using Time = std::chrono::steady_clock::time_point;
  struct Queued {
    Call call;
    Time give_up_at;
  };
  // Oldest first; never empty.
  struct Address {
    std::deque<Queued> calls;
    Time next_call;
    std::chrono::milliseconds pause{0};  // since the last answer
  };

  void Loop();
  void Settle(const std::string& address, bool answered, Time now);

  const Options options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::map<std::string, Address> addresses_;
  size_t num_queued_ = 0;
  bool stopping_ = false;
  AtStop at_stop_ = AtStop::kDrop;
  std::thread thread_;
};

}  // namespace winnow
