#pragma once
#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "winnow/v1/replication.grpc.pb.h"

namespace winnow {

// The stream to a cache rank that holds replicas of sequences of this one. Requests are sent and answered one after the
// other, on a thread of its own: sending waits for the network and never for the data plane.
class ReplicaFeed {
 public:
  struct Callbacks {
    // On the feed's thread. Each request is answered once, unless the stream ends before.
    std::function<void(v1::FeedResponse)> on_answer;
    // The last one.
    std::function<void(const grpc::Status&)> on_end;
  };

  ReplicaFeed(const std::shared_ptr<grpc::Channel>& channel, Callbacks callbacks);
  // Cancels the stream and waits for the thread.
  ~ReplicaFeed();

  void Send(v1::FeedRequest request);

 private:
  void Run();
  // The next request; null at the end.
  std::unique_ptr<v1::FeedRequest> Next();

  const std::unique_ptr<v1::ReplicationService::Stub> stub_;
  const Callbacks callbacks_;
  grpc::ClientContext context_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::deque<v1::FeedRequest> requests_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace winnow
