#pragma once
#include <array>
#include <memory>
#include <span>
#include <vector>

#include "inference_rank/backend/device_local_step.h"
#include "inference_rank/backend/sharded_forward.h"
#include "inference_rank/step/step_client.h"

namespace winnow {

// Steps of a model that several GPUs hold together (tensor parallel), over sequences whose rows all lie in their slots:
// each GPU has a DeviceLocalStep for its kv heads, and all of them are told the same. Terms and logits are added up
// inside the graphs, so that every GPU draws the same tokens, and the host waits for none of them within a step. What
// the GPUs have of a row side by side is put together here, in the order of the model's heads.
class ShardedLocalStep final : public StepClient {
 public:
  // One GPU's of each shard, in their order, which are joined and warmed up here. `layout`: of the whole model. The
  // forward pass lends its threads.
  static absl::StatusOr<std::unique_ptr<ShardedLocalStep>> Create(std::vector<std::unique_ptr<DeviceLocalStep>> shards,
                                                                  const KvLayout& layout, ShardedForward& forward);

  int max_rows() const override { return first().max_rows(); }
  uint32_t vocab_size() const override { return first().vocab_size(); }
  uint32_t pages_per_list() const override { return first().pages_per_list(); }
  // What one GPU serves of its heads, but for budgets by head.
  absl::Status Serves(const SelectionSpec& spec) const override;
  uint32_t IndexOf(const SelectionSpec& spec) const override { return first().IndexOf(spec); }
  absl::Status SetRow(int row, const StepSequence& sequence) override;
  std::vector<float> PastQueries(int row, uint32_t end) override;
  void ClearRow(int row) override;
  void Plan(std::span<const StepRow> rows) override;
  absl::Status Launch() override;
  std::span<uint64_t> token_mask(int row) override { return first().token_mask(row); }
  absl::Status Draw(std::span<const int> masked_rows) override;
  bool HasEnded() override;
  absl::Status Complete() override;
  uint32_t drawn_token(int row) const override { return first().drawn_token(row); }
  std::span<float> logits(int row) const override { return first().logits(row); }
  const std::byte* kv_rows(int row) const override;
  StepSelection selection(int row) const override;

 private:
  ShardedLocalStep(std::vector<std::unique_ptr<DeviceLocalStep>> shards, const KvLayout& layout,
                   ShardedForward& forward);
  absl::Status Join();
  // What waits for the other GPUs, for all of them at once. The first error.
  absl::Status RunTogether(absl::Status (DeviceLocalStep::*work)());
  DeviceLocalStep& first() const { return *shards_[0]; }
  int num_shards() const { return static_cast<int>(shards_.size()); }

  const std::vector<std::unique_ptr<DeviceLocalStep>> shards_;
  const KvLayout layout_;
  ShardedForward& forward_;
  uint64_t num_completed_ = 0;
  // Of the steps completed last, in turn: [max_rows][num_layers][num_kv_heads] rows, put together where they are asked
  // for.
  mutable std::array<std::vector<std::byte>, kMaxStepsUnderWay> kv_rows_;
  mutable std::vector<float> captured_masses_;  // of selection()
};

}  // namespace winnow
