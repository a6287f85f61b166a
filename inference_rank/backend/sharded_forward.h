#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "inference_rank/backend/device_forward.h"
#include "inference_rank/backend/shard_threads.h"
#include "inference_rank/backend/sharded_kv.h"

namespace winnow {

// The forward pass of a model that GPUs hold together (tensor parallel): each pass is made by all of them at once, a
// thread for each, while the caller's thread does what they need of the KV side. All residuals have the same bits.
class ShardedForward final : public Forward {
 public:
  // One GPU's of each shard, in their order. They are connected and warmed up here.
  static absl::StatusOr<std::unique_ptr<ShardedForward>> Create(std::vector<DeviceForward*> shards,
                                                                std::span<const uint32_t> first_slots);

  std::span<float> DecodeByLayer(std::span<const uint32_t> token_ids, std::span<const uint32_t> positions,
                                 DecodeKv& kv) override;
  std::span<float> Prefill(std::span<const uint32_t> token_ids, uint32_t first_position, bool last,
                           PrefillKv& kv) override;
  void EmbedPrompt(std::span<const uint32_t> token_ids, ResidualPlaces hidden) override;
  void PrefillLayer(int layer, uint32_t first_position, int num_tokens, bool last, ResidualPlaces hidden,
                    PrefillKv& kv) override;
  std::span<float> PromptLogits(ResidualPlaces hidden) override;
  void SettlePrompt() override;
  // Work of another kind on the GPUs' threads, each for its GPU, all at once.
  void RunBeside(const std::function<void(int shard)>& work) {
    Run(work, [] {});
  }
  bool DrawsTokens() const override { return true; }
  void PlanDraws(std::span<const std::optional<TokenDraw>> rows) override { shards_[0]->PlanDraws(rows); }
  uint32_t drawn_token(int row) const override { return shards_[0]->drawn_token(row); }
  const RopeTable& rope() const override { return shards_[0]->rope(); }
  float attention_scale() const override { return shards_[0]->attention_scale(); }
  absl::Status status() const override { return status_; }

 private:
  explicit ShardedForward(std::vector<DeviceForward*> shards, std::span<const uint32_t> first_slots);
  // A pass of all GPUs. One that fails frees the others.
  void Run(const std::function<void(int shard)>& pass, const std::function<void()>& serve);

  const std::vector<DeviceForward*> shards_;
  const std::vector<uint32_t> first_slots_;
  const HeadShards heads_;
  ShardThreads threads_;
  absl::Status status_;
};

}  // namespace winnow
