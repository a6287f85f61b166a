#pragma once
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "winnow/v1/identity.pb.h"

namespace winnow {

// Frees sequences on cache ranks that no inference rank will come back to: their requests have begun anew elsewhere, or
// have ended while nobody held them. Best effort: what is not told here, a cache rank frees when the sequence has been
// detached for long enough. Thread-safe; calls are made on a thread of its own, one after the other.
class SequenceReleaser {
 public:
  using ChannelFactory = std::function<std::shared_ptr<grpc::Channel>(const std::string& address)>;

  SequenceReleaser(ChannelFactory channels, std::chrono::milliseconds call_timeout);
  ~SequenceReleaser();
  SequenceReleaser(const SequenceReleaser&) = delete;
  SequenceReleaser& operator=(const SequenceReleaser&) = delete;

  // Nobody may attach to the sequence any more.
  void Release(uint64_t sequence_id, const v1::Identity& cache_rank);
  // Drops what is queued and waits for the call under way. Idempotent; nothing is taken afterwards.
  void Stop();

 private:
  struct Task {
    uint64_t sequence_id = 0;
    std::string address;
  };
  void Loop();
  void Call(const Task& task) const;

  const ChannelFactory channels_;
  const std::chrono::milliseconds call_timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::deque<Task> tasks_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace winnow
