#include "cache_rank/service/replication_service.h"

#include "absl/cleanup/cleanup.h"
#include "cache_rank/service/cache_rank.h"
#include "cache_rank/service/call_deadline.h"
#include "common/rpc/grpc_status.h"

namespace winnow {

grpc::Status ReplicationServiceImpl::KeepReplica(grpc::ServerContext* context, const v1::KeepReplicaRequest* request,
                                                 v1::KeepReplicaResponse*) {
  return ToGrpc(rank_->KeepReplica(CallDeadline(*context, rank_->options().call_timeout), *request));
}

grpc::Status ReplicationServiceImpl::Feed(grpc::ServerContext* context,
                                          grpc::ServerReaderWriter<v1::FeedResponse, v1::FeedRequest>* stream) {
  return TakeFeed(context, *stream);
}

grpc::Status ReplicationServiceImpl::TakeFeed(
    grpc::ServerContext* context, grpc::ServerReaderWriterInterface<v1::FeedResponse, v1::FeedRequest>& stream) {
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return {grpc::StatusCode::UNAVAILABLE, "the cache rank is stopping"};
    feeds_.insert(context);
  }
  const absl::Cleanup forget = [this, context] {
    std::lock_guard lock(mutex_);
    feeds_.erase(context);
  };
  const uint64_t feed = rank_->BeginFeed();
  const absl::Cleanup end = [this, feed] { rank_->EndFeed(feed); };
  v1::FeedRequest request;
  while (stream.Read(&request)) {
    const absl::StatusOr<v1::FeedResponse> response = rank_->TakeUpdates(feed, request);
    if (!response.ok()) return ToGrpc(response.status());
    if (!stream.Write(*response)) break;
  }
  return grpc::Status::OK;
}

void ReplicationServiceImpl::Stop() {
  std::lock_guard lock(mutex_);
  stopping_ = true;
  for (grpc::ServerContext* const feed : feeds_) feed->TryCancel();
}

}  // namespace winnow
