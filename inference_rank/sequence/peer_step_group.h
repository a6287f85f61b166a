#pragma once
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "inference_rank/links/shard_link.h"
#include "inference_rank/sequence/batch_rows.h"
#include "model/peer_step_link.h"

namespace winnow {

// The batches that run steps together, one of each GPU of a tensor-parallel group, and which sequence has which row: it
// is the same in all. With one GPU peer links to several cache ranks come and go, and a sequence lies whole on one of
// them. With several each batch has one peer link, to a cache rank with the shard of its heads: all sequences use all
// of them, and the end of one is that of the group. Engine thread.
class PeerStepGroup {
 public:
  // Of the batches of the shards' peer links, which are in no group yet.
  static absl::StatusOr<std::shared_ptr<PeerStepGroup>> Form(std::span<const ShardLink> shards);

  // Whether the shards' peer links are those of the group's batches, in their order.
  bool Admits(std::span<const ShardLink> shards) const;
  bool SharesBatch(std::span<const ShardLink> shards) const;  // that of one shard's peer link, at least
  size_t num_gpus() const { return batches_.size(); }
  // With several GPUs: those of its peer links, for good.
  std::span<const std::weak_ptr<CacheLink>> links() const { return links_; }
  PeerStepBatch& batch(size_t i) const { return *batches_[i]; }
  const PeerStepShape& shape() const { return batches_[0]->shape(); }
  BatchRows& batch_rows() { return batch_rows_; }

  // The number of the next step to be launched, which cache ranks with rows in it are told.
  uint32_t next_step() const { return batches_[0]->next_step(); }
  // Launches one step, once these cache ranks have been told of it, and waits for the oldest under way
  // (PeerStepBatch). An error is a GPU's; what becomes of peer links is said by their status.
  absl::Status Launch(std::span<const PeerStepBatch::Row> rows);
  absl::Status Complete();

  // False at the first call.
  bool End() { return std::exchange(ended_, true); }
  bool ended() const { return ended_; }

 private:
  explicit PeerStepGroup(std::span<const ShardLink> shards);
  // Of all GPUs at once.
  absl::Status Together(const std::function<absl::Status(PeerStepBatch& batch)>& work);

  std::vector<std::shared_ptr<PeerStepBatch>> batches_;
  std::vector<std::weak_ptr<CacheLink>> links_;
  BatchRows batch_rows_;
  std::vector<absl::Status> outcomes_;  // of Together, by GPU
  bool ended_ = false;
};

}  // namespace winnow
