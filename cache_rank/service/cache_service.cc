#include "cache_rank/service/cache_service.h"

#include "cache_rank/service/cache_rank.h"
#include "cache_rank/service/call_deadline.h"
#include "cache_rank/service/channel_number.h"
#include "cache_rank/service/stored_spans.h"
#include "common/rpc/grpc_status.h"
#include "common/rpc/trace_carriers.h"
#include "common/selection/selection_proto.h"
#include "common/selection/shard_spec.h"

namespace winnow {
namespace {

// What a call says of its trace: nothing where nobody traces.
struct CallTrace {
  std::optional<TraceContext> parent;
  uint64_t start_unix_nanos = 0;
};

CallTrace TraceOfCall(const CacheRank& rank, const grpc::ServerContext& context) {
  if (rank.options().spans == nullptr) return {};
  return {.parent = TraceOf(context), .start_unix_nanos = UnixNanosNow()};
}

// Unchecked; num_layers 0 where the request names none.
template <typename Request>
KvShard ShardOf(const Request& request) {
  return request.has_shard() ? FromProto(request.shard()) : KvShard();
}

}  // namespace

void CacheServiceImpl::NoteAttached(const char* name, const std::optional<TraceContext>& trace,
                                    uint64_t start_unix_nanos, const DataPlane& data_plane, uint64_t sequence_id) {
  const CachedSequence* const sequence = data_plane.store().Find(sequence_id);
  if (sequence != nullptr) rank_->spans().Begin(name, trace, start_unix_nanos, *sequence);
}

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
  options.state_bytes = request->state_bytes();
  if (request->has_max_cached_tokens()) options.max_cached_tokens = request->max_cached_tokens();
  const absl::StatusOr<DataPlane::Opened> opened = rank_->Call(
      CallDeadline(*context, rank_->options().call_timeout),
      [this, trace = TraceOfCall(*rank_, *context), link = LinkOf(rank_->options().identity, request->channel_id()),
       options = std::move(options)](DataPlane& data_plane) {
        auto opened = data_plane.OpenSequence(link, options);
        if (opened.ok()) NoteAttached("open", trace.parent, trace.start_unix_nanos, data_plane, options.sequence_id);
        return opened;
      });
  if (opened.ok()) {
    response->set_attach_epoch(opened->attach_epoch);
    response->set_cached_tokens(opened->cached_tokens);
  }
  return ToGrpc(opened.status());
}

grpc::Status CacheServiceImpl::PushPrefix(grpc::ServerContext* context, const v1::PushPrefixRequest* request,
                                          v1::PushPrefixResponse*) {
  return ToGrpc(rank_->Call(CallDeadline(*context, rank_->options().call_timeout),
                            [link = LinkOf(rank_->options().identity, request->channel_id()),
                             id = request->sequence_id(), epoch = request->attach_epoch(),
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
  AttachOptions options{
      .shard = ShardOf(*request), .wants_all_rows = request->wants_all_rows(), .call = request->call()};
  options.state_bytes = request->state_bytes();
  if (request->has_prefix_salt()) options.prefix_salt = request->prefix_salt();
  const absl::StatusOr<DataPlane::Attached> attached =
      rank_->Call(CallDeadline(*context, rank_->options().call_timeout),
                  [this, trace = TraceOfCall(*rank_, *context),
                   link = LinkOf(rank_->options().identity, request->channel_id()), id = request->sequence_id(),
                   max_restart = request->max_restart_position(), options = std::move(options)](DataPlane& data_plane) {
                    rank_->spans().End(data_plane.store().Find(id), "taken_over");
                    auto attached = data_plane.AttachSequence(link, id, max_restart, options);
                    if (attached.ok()) NoteAttached("attach", trace.parent, trace.start_unix_nanos, data_plane, id);
                    return attached;
                  });
  if (!attached.ok()) return ToGrpc(attached.status());
  response->set_attach_epoch(attached->attach_epoch);
  response->set_restart_position(attached->restart_position);
  response->set_cached_tokens(attached->cached_tokens);
  response->set_first_journaled_position(attached->journal.first_position);
  response->mutable_journaled_token_ids()->Add(attached->journal.token_ids.begin(), attached->journal.token_ids.end());
  return grpc::Status::OK;
}

grpc::Status CacheServiceImpl::ForkSequence(grpc::ServerContext* context, const v1::ForkSequenceRequest* request,
                                            v1::ForkSequenceResponse* response) {
  const absl::StatusOr<DataPlane::Forked> forked = rank_->Call(
      CallDeadline(*context, rank_->options().call_timeout),
      [this, trace = TraceOfCall(*rank_, *context), link = LinkOf(rank_->options().identity, request->channel_id()),
       source = request->source_sequence_id(), id = request->sequence_id(),
       max_positions = request->max_positions()](DataPlane& data_plane) {
        auto forked = data_plane.ForkSequence(link, source, id, max_positions);
        if (forked.ok()) NoteAttached("fork", trace.parent, trace.start_unix_nanos, data_plane, id);
        return forked;
      });
  if (forked.ok()) {
    response->set_attach_epoch(forked->attach_epoch);
    response->set_position(forked->position);
  }
  return ToGrpc(forked.status());
}

grpc::Status CacheServiceImpl::ReleaseSequence(grpc::ServerContext* context, const v1::ReleaseSequenceRequest* request,
                                               v1::ReleaseSequenceResponse*) {
  const uint32_t link = LinkOf(rank_->options().identity, request->channel_id());
  // What another start of this process held, at whose epochs this one may have its own, has gone with that.
  if (request->channel_id() != 0 && link == 0) return grpc::Status::OK;
  absl::Status released =
      rank_->Call(CallDeadline(*context, rank_->options().call_timeout),
                  [this, id = request->sequence_id(), epoch = request->attach_epoch(), detach = request->detach(), link,
                   call = request->call()](DataPlane& data_plane) {
                    if (call != 0) return data_plane.UndoAttach(link, id, call);
                    const CachedSequence* const held = data_plane.store().Find(id);
                    const bool is_let_go = held != nullptr && (epoch == 0 || epoch == held->attach_epoch);
                    if (is_let_go) rank_->spans().End(held, detach ? "detached" : "released");
                    return detach ? data_plane.DetachSequence(id, epoch) : data_plane.ReleaseSequence(id, epoch);
                  });
  // A cache rank that holds nothing has nothing to release.
  if (absl::IsNotFound(released)) released = absl::OkStatus();
  return ToGrpc(released);
}

}  // namespace winnow
