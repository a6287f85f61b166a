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
#include <optional>
#include <string>
#include <thread>

#include "winnow/v1/identity.pb.h"

namespace winnow {

// What a router tells cache ranks of sequences: to free those that no inference rank will come back to, because their
// requests have begun anew elsewhere or have ended while nobody held them, and where replicas are to be. A cache rank
// that does not answer, as it may have stopped for a while, is asked again until it does: what it holds for nobody
// keeps others out. One that has not answered for `patience` is lost, or has freed what was detached by itself. What
// one cache rank is told keeps its order. Thread-safe; calls are made on a thread of its own, one after the other.
class CacheRankOrders {
 public:
  using ChannelFactory = std::function<std::shared_ptr<grpc::Channel>(const std::string& address)>;
  struct Options {
    v1::Identity identity{};  // of the router
    std::chrono::milliseconds call_timeout{2000};
    // Before a cache rank that has not answered is asked again, at first and at most: it doubles with every call.
    std::chrono::milliseconds first_pause{100};
    std::chrono::milliseconds longest_pause{5000};
    std::chrono::milliseconds patience{300'000};
  };

  CacheRankOrders(ChannelFactory channels, const Options& options);
  ~CacheRankOrders();
  CacheRankOrders(const CacheRankOrders&) = delete;
  CacheRankOrders& operator=(const CacheRankOrders&) = delete;

  // Nobody may attach to the sequence any more.
  void Release(uint64_t sequence_id, const v1::Identity& cache_rank);
  // The sequence, which `cache_rank` holds or is about to, is to have its replica there.
  void KeepReplica(uint64_t sequence_id, const v1::Identity& cache_rank, const v1::Identity& replica);
  // Drops what is queued and waits for the call under way. Idempotent; nothing is taken afterwards.
  void Stop();

 private:
  using Time = std::chrono::steady_clock::time_point;
  struct Task {
    uint64_t sequence_id = 0;
    std::optional<v1::Identity> replica;  // to be kept there; absent: the sequence is to be freed
    Time give_up_at;
  };
  // What is to be told at one address, oldest first; never empty.
  struct CacheRank {
    std::deque<Task> tasks;
    Time next_call;
    std::chrono::milliseconds pause{0};  // since the last answer
  };

  void Loop();
  void Add(Task task, const std::string& address);
  // True when it is over: done, or nothing that another call could change.
  bool Call(const std::string& address, const Task& task) const;
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
