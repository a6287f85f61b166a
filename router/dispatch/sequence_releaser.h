#pragma once
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "winnow/v1/identity.pb.h"

namespace winnow {

// Frees sequences on cache ranks that no inference rank will come back to: their requests have begun anew elsewhere, or
// have ended while nobody held them. A cache rank that does not answer, as it may have stopped for a while, is asked
// again until it does: what it holds for nobody keeps others out. One that has not answered for `patience` is lost, or
// has freed what was detached by itself. Thread-safe; calls are made on a thread of its own, one after the other.
class SequenceReleaser {
 public:
  using ChannelFactory = std::function<std::shared_ptr<grpc::Channel>(const std::string& address)>;
  struct Options {
    std::chrono::milliseconds call_timeout{2000};
    // Before a cache rank that has not answered is asked again, at first and at most: it doubles with every call.
    std::chrono::milliseconds first_pause{100};
    std::chrono::milliseconds longest_pause{5000};
    std::chrono::milliseconds patience{300'000};
  };

  SequenceReleaser(ChannelFactory channels, const Options& options);
  ~SequenceReleaser();
  SequenceReleaser(const SequenceReleaser&) = delete;
  SequenceReleaser& operator=(const SequenceReleaser&) = delete;

  // Nobody may attach to the sequence any more.
  void Release(uint64_t sequence_id, const v1::Identity& cache_rank);
  // Drops what is queued and waits for the call under way. Idempotent; nothing is taken afterwards.
  void Stop();

 private:
  using Time = std::chrono::steady_clock::time_point;
  struct Task {
    uint64_t sequence_id = 0;
    Time give_up_at;
  };
  // What is to be freed at one address, oldest first; never empty.
  struct CacheRank {
    std::deque<Task> tasks;
    Time next_call;
    std::chrono::milliseconds pause{0};  // since the last answer
  };

  void Loop();
  // True when it is over: freed, or nothing that another call could change.
  bool Call(const std::string& address, uint64_t sequence_id) const;
  void Settle(const std::string& address, bool answered, Time now);

  const ChannelFactory channels_;
  const Options options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::map<std::string, CacheRank> ranks_;  // by address
  size_t num_tasks_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace winnow
