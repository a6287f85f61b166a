#include "inference_rank/backend/sharded_forward.h"

#include "common/base/status.h"

namespace winnow {
namespace {

HeadShards HeadsOf(const std::vector<DeviceForward*>& shards) {
  const ModelConfig& config = shards[0]->layers().config();
  return {.num_shards = static_cast<int>(shards.size()),
          .kv_heads_each = config.num_kv_heads,
          .group_size = config.group_size()};
}

// Of the GPU that failed first, rather than of those that were freed then.
absl::Status FirstFailure(const std::vector<DeviceForward*>& shards) {
  absl::Status first;
  for (const DeviceForward* shard : shards) {
    const absl::Status status = shard->status();
    if (first.ok() || (absl::IsAborted(first) && !status.ok())) first = status;
  }
  return first;
}

}  // namespace

ShardedForward::ShardedForward(std::vector<DeviceForward*> shards, std::span<const uint32_t> first_slots)
    : shards_(std::move(shards)),
      first_slots_(first_slots.begin(), first_slots.end()),
      heads_(HeadsOf(shards_)),
      threads_(static_cast<int>(shards_.size())) {}

absl::StatusOr<std::unique_ptr<ShardedForward>> ShardedForward::Create(std::vector<DeviceForward*> shards,
                                                                       std::span<const uint32_t> first_slots) {
  std::unique_ptr<ShardedForward> forward(new ShardedForward(std::move(shards), first_slots));
  std::vector<ShardSums::Box> boxes;
  for (DeviceForward* shard : forward->shards_) boxes.push_back(shard->sums()->box());
  for (DeviceForward* shard : forward->shards_) shard->sums()->Connect(boxes);
  forward->Run([&](int shard) { (void)forward->shards_[shard]->WarmUp(); }, [] {});
  WINNOW_RETURN_IF_ERROR(forward->status_);
  return forward;
}

void ShardedForward::Run(const std::function<void(int)>& pass, const std::function<void()>& serve) {
  threads_.Run(
      [&](int shard) {
        pass(shard);
        if (shards_[shard]->status().ok()) return;
        for (DeviceForward* other : shards_) other->sums()->Abort();
      },
      serve);
  status_ = FirstFailure(shards_);
}

std::span<float> ShardedForward::DecodeByLayer(std::span<const uint32_t> token_ids, std::span<const uint32_t> positions,
                                               DecodeKv& kv) {
  if (!status_.ok()) return {};
  ShardedDecodeKv sharded(kv, threads_, heads_, first_slots_, static_cast<int>(token_ids.size()));
  std::span<float> logits;
  Run(
      [&](int shard) {
        const std::span<float> of_shard = shards_[shard]->DecodeByLayer(token_ids, positions, sharded.part(shard));
        if (shard == 0) logits = of_shard;
      },
      [&] { sharded.Serve(); });
  return logits;
}

std::span<float> ShardedForward::Prefill(std::span<const uint32_t> token_ids, uint32_t first_position, bool last,
                                         PrefillKv& kv) {
  if (!status_.ok()) return {};
  ShardedPrefillKv sharded(kv, threads_, heads_);
  std::span<float> logits;
  Run(
      [&](int shard) {
        const std::span<float> of_shard = shards_[shard]->Prefill(token_ids, first_position, last, sharded.part(shard));
        if (shard == 0) logits = of_shard;
      },
      [&] { sharded.Serve(); });
  return logits;
}

void ShardedForward::EmbedPrompt(std::span<const uint32_t> token_ids, ResidualPlaces hidden) {
  if (!status_.ok()) return;
  Run([&](int shard) { shards_[shard]->EmbedPrompt(token_ids, hidden.subspan(shard, 1)); }, [] {});
}

void ShardedForward::PrefillLayer(int layer, uint32_t first_position, int num_tokens, bool last, ResidualPlaces hidden,
                                  PrefillKv& kv) {
  if (!status_.ok()) return;
  ShardedPrefillKv sharded(kv, threads_, heads_);
  Run(
      [&](int shard) {
        shards_[shard]->PrefillLayer(layer, first_position, num_tokens, last, hidden.subspan(shard, 1),
                                     sharded.part(shard));
      },
      [&] { sharded.Serve(); });
}

std::span<float> ShardedForward::PromptLogits(ResidualPlaces hidden) {
  if (!status_.ok()) return {};
  std::span<float> logits;
  Run(
      [&](int shard) {
        const std::span<float> of_shard = shards_[shard]->PromptLogits(hidden.subspan(shard, 1));
        if (shard == 0) logits = of_shard;
      },
      [] {});
  return logits;
}

void ShardedForward::SettlePrompt() {
  if (status_.ok()) Run([&](int shard) { shards_[shard]->SettlePrompt(); }, [] {});
}

}  // namespace winnow
