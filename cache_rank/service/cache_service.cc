#include "cache_rank/service/cache_service.h"

#include "cache_rank/service/cache_rank.h"
#include "cache_rank/service/call_deadline.h"
#include "common/rpc/grpc_status.h"
#include "common/selection/selection_proto.h"
#include "common/selection/shard_spec.h"

namespace winnow {
namespace {

// Channel ids are small numbers here; anything else names no channel.
uint32_t LinkId(uint64_t channel_id) {
  return channel_id <= UINT32_MAX ? static_cast<uint32_t>(channel_id) : 0;
}

// Unchecked; num_layers 0 where the request names none.
template <typename Request>
KvShard ShardOf(const Request& request) {
  return request.has_shard() ? FromProto(request.shard()) : KvShard();
}

}  // namespace

grpc::Status CacheServiceImpl::OpenSequence(grpc::ServerContext* context, const v1::OpenSequenceRequest* request,
                                            v1::OpenSequenceResponse* response) {
  absl::StatusOr<SelectionSpec> spec = FromProto(request->selection());
  if (!spec.ok()) return ToGrpc(spec.status());
  SequenceStore::OpenOptions options{
      .sequence_id = request->sequence_id(),
      .spec = *std::move(spec),
      .max_positions = request->max_positions(),
      .prompt_tokens = request->prompt_tokens(),
      .sampling = request->sampling(),
      .prompt_token_ids = {request->prompt_token_ids().begin(), request->prompt_token_ids().end()},
      .prefix_salt = request->prefix_salt(),
      .pulls_prefix = request->pulls_prefix(),
      .shard = ShardOf(*request)};
  if (request->has_max_cached_tokens()) options.max_cached_tokens = request->max_cached_tokens();
  const absl::StatusOr<DataPlane::Opened> opened =
      rank_->Call(CallDeadline(*context, rank_->options().call_timeout),
                  [link = LinkId(request->channel_id()), options = std::move(options)](DataPlane& data_plane) {
                    return data_plane.OpenSequence(link, options);
                  });
  if (opened.ok()) {
    response->set_attach_epoch(opened->attach_epoch);
    response->set_cached_tokens(opened->cached_tokens);
  }
  return ToGrpc(opened.status());
}

grpc::Status CacheServiceImpl::PushPrefix(grpc::ServerContext* context, const v1::PushPrefixRequest* request,
                                          v1::PushPrefixResponse*) {
  return ToGrpc(
      rank_->Call(CallDeadline(*context, rank_->options().call_timeout),
                  [link = LinkId(request->channel_id()), id = request->sequence_id(), epoch = request->attach_epoch(),
                   rows = PrefixRows{.layer = request->layer(),
                                     .num_layers = 1 + request->more_layers(),
                                     .sinks = request->sink_positions(),
                                     .first = request->first_position(),
                                     .end = request->end_position()}](DataPlane& data_plane) {
                    return data_plane.PushPrefix(link, id, epoch, rows);
                  }));
}

grpc::Status CacheServiceImpl::AttachSequence(grpc::ServerContext* context, const v1::AttachSequenceRequest* request,
                                              v1::AttachSequenceResponse* response) {
  const absl::StatusOr<DataPlane::Attached> attached =
      rank_->Call(CallDeadline(*context, rank_->options().call_timeout),
                  [link = LinkId(request->channel_id()), id = request->sequence_id(),
                   max_restart = request->max_restart_position(), shard = ShardOf(*request),
                   all_rows = request->wants_all_rows()](DataPlane& data_plane) {
                    return data_plane.AttachSequence(link, id, max_restart, shard, all_rows);
                  });
  if (!attached.ok()) return ToGrpc(attached.status());
  response->set_attach_epoch(attached->attach_epoch);
  response->set_restart_position(attached->restart_position);
  response->set_first_journaled_position(attached->journal.first_position);
  response->mutable_journaled_token_ids()->Add(attached->journal.token_ids.begin(), attached->journal.token_ids.end());
  return grpc::Status::OK;
}

grpc::Status CacheServiceImpl::ForkSequence(grpc::ServerContext* context, const v1::ForkSequenceRequest* request,
                                            v1::ForkSequenceResponse* response) {
  const absl::StatusOr<DataPlane::Forked> forked =
      rank_->Call(CallDeadline(*context, rank_->options().call_timeout),
                  [link = LinkId(request->channel_id()), source = request->source_sequence_id(),
                   id = request->sequence_id(), max_positions = request->max_positions()](DataPlane& data_plane) {
                    return data_plane.ForkSequence(link, source, id, max_positions);
                  });
  if (forked.ok()) {
    response->set_attach_epoch(forked->attach_epoch);
    response->set_position(forked->position);
  }
  return ToGrpc(forked.status());
}

grpc::Status CacheServiceImpl::ReleaseSequence(grpc::ServerContext* context, const v1::ReleaseSequenceRequest* request,
                                               v1::ReleaseSequenceResponse*) {
  absl::Status released =
      rank_->Call(CallDeadline(*context, rank_->options().call_timeout),
                  [id = request->sequence_id(), epoch = request->attach_epoch(),
                   detach = request->detach()](DataPlane& data_plane) {
                    return detach ? data_plane.DetachSequence(id, epoch) : data_plane.ReleaseSequence(id, epoch);
                  });
  // A cache rank that holds nothing has nothing to release.
  if (absl::IsNotFound(released)) released = absl::OkStatus();
  return ToGrpc(released);
}

}  // namespace winnow
