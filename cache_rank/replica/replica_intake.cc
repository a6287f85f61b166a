#include "cache_rank/replica/replica_intake.h"

#include "cache_rank/replica/replica_rows.h"

namespace winnow {
namespace {

absl::Status Promoted(uint64_t sequence_id) {
  return absl::AlreadyExistsError(absl::StrCat("sequence ", sequence_id, " is no replica here"));
}

}  // namespace

v1::FeedResponse ReplicaIntake::Take(DataPlane& data_plane, uint64_t feed, const v1::FeedRequest& request) const {
  v1::FeedResponse response;
  for (const v1::ReplicaUpdate& update : request.updates()) {
    const absl::StatusOr<uint32_t> stored = TakeUpdate(data_plane, feed, update);
    if (absl::IsAlreadyExists(stored.status())) metrics_->replica_updates_fenced.Add(1);
    v1::ReplicaState& state = *response.add_states();
    state.set_sequence_id(update.sequence_id());
    state.set_stored_positions(stored.value_or(0));
    state.set_code(static_cast<uint32_t>(stored.status().raw_code()));
    state.set_message(std::string(stored.status().message()));
  }
  return response;
}

absl::StatusOr<uint32_t> ReplicaIntake::TakeUpdate(DataPlane& data_plane, uint64_t feed,
                                                   const v1::ReplicaUpdate& update) const {
  if (update.has_opening()) return Open(data_plane, feed, update);
  if (update.has_rows()) return Store(data_plane, feed, update);
  const CachedSequence* const sequence = data_plane.store().Find(update.sequence_id());
  if (sequence == nullptr) return 0;
  if (!sequence->is_replica) return Promoted(update.sequence_id());
  // Another primary may feed it by now.
  if (sequence->feed != feed) return 0;
  if (update.detach()) {
    data_plane.store().DetachReplica(update.sequence_id(), std::chrono::steady_clock::now());
    return 0;
  }
  WINNOW_RETURN_IF_ERROR(data_plane.ReleaseSequence(update.sequence_id(), SequenceStore::kAnyEpoch));
  return 0;
}

absl::StatusOr<uint32_t> ReplicaIntake::Open(DataPlane& data_plane, uint64_t feed,
                                             const v1::ReplicaUpdate& update) const {
  const uint64_t id = update.sequence_id();
  const CachedSequence* const before = data_plane.store().Find(id);
  if (before != nullptr && !before->is_replica) return Promoted(id);
  WINNOW_ASSIGN_OR_RETURN(const SequenceStore::OpenOptions options, OptionsOf(id, update.opening()));
  WINNOW_ASSIGN_OR_RETURN(const CachedSequence* replica, data_plane.OpenReplica(feed, options));
  return replica->kv.watermark();
}

absl::StatusOr<uint32_t> ReplicaIntake::Store(DataPlane& data_plane, uint64_t feed,
                                              const v1::ReplicaUpdate& update) const {
  CachedSequence* const replica = data_plane.store().Find(update.sequence_id());
  if (replica == nullptr) return absl::NotFoundError(absl::StrCat("sequence ", update.sequence_id(), " is not here"));
  if (!replica->is_replica) return Promoted(update.sequence_id());
  if (replica->feed != feed) return absl::FailedPreconditionError("another stream feeds the replica");
  WINNOW_RETURN_IF_ERROR(StoreRows(update.rows(), *replica, executor_));
  if (replica->kv.watermark() >= replica->prompt_tokens) data_plane.store().KeepPrefix(*replica);
  metrics_->replica_received_bytes.Add(update.rows().kv_rows().size());
  return replica->kv.watermark();
}

}  // namespace winnow
