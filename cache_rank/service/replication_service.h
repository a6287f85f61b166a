#pragma once
#include <mutex>
#include <set>

#include "winnow/v1/replication.grpc.pb.h"

namespace winnow {

class CacheRank;

// The gRPC edge of replicas: those that are to be fed from here, and those that are fed here. A Feed holds a thread for
// as long as it lasts; there are as many as cache ranks.
class ReplicationServiceImpl final : public v1::ReplicationService::Service {
 public:
  explicit ReplicationServiceImpl(CacheRank* rank) : rank_(rank) {}

  grpc::Status KeepReplica(grpc::ServerContext* context, const v1::KeepReplicaRequest* request,
                           v1::KeepReplicaResponse* response) override;
  grpc::Status Feed(grpc::ServerContext* context,
                    grpc::ServerReaderWriter<v1::FeedResponse, v1::FeedRequest>* stream) override;

  // Feed, whatever the stream is made of.
  grpc::Status TakeFeed(grpc::ServerContext* context,
                        grpc::ServerReaderWriterInterface<v1::FeedResponse, v1::FeedRequest>& stream);

  // Ends all feeds, now and from now on. Any thread.
  void Stop();

 private:
  CacheRank* const rank_;
  std::mutex mutex_;
  // Guarded by mutex_.
  bool stopping_ = false;
  std::set<grpc::ServerContext*> feeds_;
};

}  // namespace winnow
