#include "inference_rank/links/shard_release.h"

#include "common/rpc/grpc_status.h"

namespace winnow {

ShardRelease::ShardRelease(const ShardLink& shard, uint64_t sequence_id, bool detach)
    : link_(shard.link), channel_(shard.link->grpc_channel()) {
  request_.set_sequence_id(sequence_id);
  request_.set_detach(detach);
  request_.set_attach_epoch(shard.attach_epoch);
  request_.set_channel_id(shard.link->channel_id());
  request_.set_call(shard.doubtful_call);
}

bool ShardRelease::IsNeeded() const {
  const bool is_attached = request_.attach_epoch() != 0;
  if (!is_attached && request_.call() == 0) return false;
  const std::shared_ptr<CacheLink> link = link_.lock();
  return (link != nullptr && link->alive()) || (is_attached && !request_.detach());
}

bool ShardRelease::Call(std::chrono::milliseconds timeout) const {
  if (!IsNeeded()) return true;
  grpc::ClientContext context;
  SetTimeout(context, timeout);
  v1::ReleaseSequenceResponse response;
  return HasAnswer(v1::CacheService::NewStub(channel_)->ReleaseSequence(&context, request_, &response));
}

}  // namespace winnow
