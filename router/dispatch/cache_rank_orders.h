#pragma once
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/rpc/retried_calls.h"
#include "winnow/v1/identity.pb.h"

namespace winnow {

// What a router tells cache ranks of sequences: to free those that no inference rank will come back to, because their
// requests have begun anew elsewhere or have ended while nobody held them, and where replicas are to be. A cache rank
// that does not answer, as it may have stopped for a while, is asked again until it does: what it holds for nobody
// keeps others out. One that has not answered for as long as RetriedCalls has patience is lost, or has freed what was
// detached by itself. What one cache rank is told keeps its order. Thread-safe; calls are made on a thread of its own.
class CacheRankOrders {
 public:
  using ChannelFactory = std::function<std::shared_ptr<grpc::Channel>(const std::string& address)>;
  struct Options {
    v1::Identity identity{};  // of the router
    std::chrono::milliseconds call_timeout{2000};
    RetriedCalls::Options retries{};
  };

  CacheRankOrders(ChannelFactory channels, const Options& options);
  // Nobody may attach to the sequence any more.
  void Release(uint64_t sequence_id, const v1::Identity& cache_rank);
  // The sequence, which `cache_rank` holds or is about to, is to have its replica there.
  void KeepReplica(uint64_t sequence_id, const v1::Identity& cache_rank, const v1::Identity& replica);
  // Drops what is queued and waits for the call under way. Idempotent; nothing is taken afterwards.
  void Stop();

 private:
  const ChannelFactory channels_;
  const Options options_;
  RetriedCalls calls_;
};

}  // namespace winnow
