#include "inference_rank/sequence/peer_step_group.h"

#include <algorithm>

namespace winnow {

PeerStepGroup::PeerStepGroup(std::span<const ShardLink> shards)
    : batch_rows_(shards.front().link->peer_link()->shape().max_rows), outcomes_(shards.size()) {
  for (const ShardLink& shard : shards) {
    batches_.push_back(shard.link->peer_link()->batch());
    if (shards.size() > 1) links_.push_back(shard.link);
  }
}

absl::StatusOr<std::shared_ptr<PeerStepGroup>> PeerStepGroup::Form(std::span<const ShardLink> shards) {
  std::shared_ptr<PeerStepGroup> group(new PeerStepGroup(shards));
  std::vector<PeerStepBatch*> batches;
  for (const std::shared_ptr<PeerStepBatch>& batch : group->batches_) batches.push_back(batch.get());
  for (PeerStepBatch* batch : batches) WINNOW_RETURN_IF_ERROR(batch->Join(batches));
  return group;
}

bool PeerStepGroup::Admits(std::span<const ShardLink> shards) const {
  return std::equal(
      shards.begin(), shards.end(), batches_.begin(), batches_.end(),
      [](const ShardLink& shard, const auto& batch) { return shard.link->peer_link()->batch() == batch; });
}

bool PeerStepGroup::SharesBatch(std::span<const ShardLink> shards) const {
  return std::any_of(shards.begin(), shards.end(), [&](const ShardLink& shard) {
    return std::find(batches_.begin(), batches_.end(), shard.link->peer_link()->batch()) != batches_.end();
  });
}

absl::Status PeerStepGroup::Launch(std::span<const PeerStepBatch::Row> rows) {
  for (const auto& batch : batches_) WINNOW_RETURN_IF_ERROR(batch->Prepare(rows));
  return Together([rows](PeerStepBatch& batch) { return batch.Launch(rows); });
}

absl::Status PeerStepGroup::Complete() {
  return Together([](PeerStepBatch& batch) { return batch.Complete(); });
}

absl::Status PeerStepGroup::Together(const std::function<absl::Status(PeerStepBatch& batch)>& work) {
  batches_.front()->RunTogether([&](int i) {
    outcomes_[i] = work(*batches_[i]);
    if (outcomes_[i].ok()) return;
    // The other GPUs wait for this one.
    for (const auto& other : batches_) {
      if (other != batches_[i]) other->Abort(absl::AbortedError("a peer link of another GPU has failed"));
    }
  });
  // Of the GPU that failed first, rather than of those that were ended then.
  absl::Status status;
  for (const absl::Status& outcome : outcomes_) {
    if (!outcome.ok() && (status.ok() || absl::IsAborted(status))) status = outcome;
  }
  return status;
}

}  // namespace winnow
