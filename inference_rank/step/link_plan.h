#pragma once
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "common/base/kv_layout.h"
#include "common/base/kv_shard.h"
#include "common/base/status.h"
#include "inference_rank/links/cache_link.h"
#include "inference_rank/sequence/sequence.h"
#include "inference_rank/step/frame_writer.h"
#include "model/forward.h"
#include "transport/transport.h"

namespace winnow {

// One row of a decode step.
struct FrameStepRow {
  Sequence* sequence = nullptr;
  uint32_t position = 0;
  uint32_t token_id = 0;     // its input
  uint32_t dense_lists = 0;  // those that attend everything, of all shards
  bool verified = false;     // waits for verifications on its sparse lists
  bool sends_alone = false;  // its K and V are sent when the step is over, and it has no part in a plan
  bool poisoned = false;     // its result is discarded
};

// What one cache rank has of a step's plan: the rows of its frames are these.
struct LinkPlan {
  struct Member {
    int row;  // of the step
    KvShard shard;
    bool withdrawn = false;  // what is posted of it from here on is dropped there
  };
  CacheLink* link = nullptr;
  std::vector<Member> members;
  bool needs_queries = false;
  bool needs_index_queries = false;
  bool needs_predictions = false;
  bool needs_hidden = false;

  // The step's row that an entry of the link is about; INVALID_ARGUMENT when the link holds no such list of it.
  absl::StatusOr<int> RowOf(uint32_t plan_row, int layer, int kv_head) const;
};

// The plans of one step, by link. Reused from step to step. Engine thread.
class LinkPlans {
 public:
  void Clear() { num_plans_ = 0; }
  // That of a link, which gets one if it has none.
  LinkPlan& Of(CacheLink* link);
  // Null when the link is not concerned.
  const LinkPlan* Find(const CacheLink& link) const;
  std::span<const LinkPlan> all() const { return {plans_.data(), num_plans_}; }
  std::span<LinkPlan> all() { return {plans_.data(), num_plans_}; }

 private:
  std::vector<LinkPlan> plans_;  // num_plans_ in use
  size_t num_plans_ = 0;
};

// Sends a step's frames, waiting for send window where it is used up. UNAVAILABLE when the link dies, DEADLINE_EXCEEDED
// at the backstop. Engine thread.
class PlanSender {
 public:
  PlanSender(Transport& transport, const KvLayout& layout, const DataPlaneWaits& waits)
      : transport_(transport), layout_(layout), waits_(waits) {}

  // StepPlan.
  absl::Status PostPlan(uint64_t plan, const LinkPlan& of, std::span<const FrameStepRow> rows);
  // That the sequence's rows of this plan come to nothing: the cache rank drops what it gets of them from here on.
  absl::Status PostWithdrawal(uint64_t plan, CacheLink& link, const Sequence& sequence);
  // Layer: what the rows' specifications want of it, for the rows whose shard has it. `hidden_target`: the layer that
  // the residual is sent for, if it is one.
  absl::Status PostLayer(uint64_t plan, const LinkPlan& of, const DecodeLayerOutput& output, int hidden_target);

 private:
  Transport& transport_;
  const KvLayout layout_;
  const DataPlaneWaits waits_;
  SectionGather sections_;  // of the frame under construction
};

}  // namespace winnow
