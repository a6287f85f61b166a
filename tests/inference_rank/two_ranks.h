#pragma once
#include <map>
#include <memory>
#include <vector>

#include "cache_rank/step/data_plane.h"
#include "inference_rank/memory/slot_pool.h"
#include "inference_rank/step/decode_step.h"
#include "inference_rank/step/prefill_step.h"
#include "model/transformer.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"

namespace winnow::test {

// The real transformer, prefill and decode steps against the real data plane of a cache rank, or of several that hold a
// shard of each sequence, in one thread: the cache ranks work whenever the inference rank waits. Rows and weights are
// f32.
class TwoRanks {
 public:
  explicit TwoRanks(const TinyModel& model, std::chrono::milliseconds wait_timeout = std::chrono::seconds(20),
                    int num_shards = 1);
  ~TwoRanks();

  // A sequence whose prompt was prefilled; its tokens are functions of `seed` and position.
  Sequence* Prefill(uint64_t id, uint32_t seed, const SelectionSpec& spec, uint32_t prompt_tokens, uint32_t decodes);
  // The same layer by layer, in chunks of `chunk` tokens.
  Sequence* PrefillByLayer(uint64_t id, uint32_t seed, const SelectionSpec& spec, uint32_t prompt_tokens,
                           uint32_t decodes, uint32_t chunk);
  // Of the last prompt.
  const std::vector<float>& prompt_logits() const { return prompt_logits_; }
  // One decode step; returns each row's logits. `kv` stands between transformer and decode step where it is given.
  std::vector<std::vector<float>> Decode(const std::vector<Sequence*>& sequences, DecodeKv* kv = nullptr);

  DecodeStep& decode_step() { return decode_step_; }
  const KvLayout& layout() const { return layout_; }
  const ModelConfig& config() const { return config_; }
  const RopeTable& rope() const { return transformer_.rope(); }
  float attention_scale() const { return transformer_.attention_scale(); }
  const SlotPool& slots() const { return slots_; }
  const CacheLink& link() const { return *cache_sides_[0]->link; }
  const DataPlane& data_plane(size_t shard) const { return *cache_sides_[shard]->data_plane; }
  const std::vector<KvShard>& shards() const { return shards_; }
  // The row at a position, as it was sent to the cache rank.
  const float* StoredRow(const Sequence& sequence, int layer, int kv_head, uint32_t position) const;

  bool drop_partials = false;  // of the cache rank's frames
  // Delta frames come as to a GPU that reads their payloads where they lie: not checked, and with a row that is not
  // what was sent.
  bool leaves_unchecked = false, damages_rows = false;
  // Sequence n has shard i on cache rank i + n, round robin, so that each cache rank holds different shards.
  bool rotates_shards = false;
  std::vector<absl::Status> malformed;

 private:
  class PumpedTransport;
  struct CacheSide {
    CacheRankMetrics metrics;
    std::unique_ptr<Transport> transport;
    std::unique_ptr<DataPlane> data_plane;
    std::shared_ptr<CacheLink> link;
    uint32_t link_id = 0;
  };
  std::unique_ptr<CacheSide> NewCacheSide(uint64_t incarnation);
  void OnFrame(const Channel& channel, ReceivedFrame frame);
  size_t SideOf(uint64_t sequence_id, size_t shard) const {
    return rotates_shards ? (shard + sequence_id) % shards_.size() : shard;
  }
  Sequence* Open(uint64_t id, uint32_t seed, const SelectionSpec& spec, uint32_t prompt_tokens, uint32_t decodes);
  ServedShape MakeShape() const;

  const TempDir directory_;
  const ModelConfig config_;
  const KvLayout layout_;
  const KernelTable& kernels_;
  const std::unique_ptr<Executor> executor_, cache_executor_;
  const std::unique_ptr<ModelWeights> weights_;
  Transformer transformer_;
  InferenceRankMetrics metrics_;
  SlotPool slots_;
  const std::vector<KvShard> shards_;
  std::unique_ptr<Transport> transport_;
  std::vector<std::unique_ptr<CacheSide>> cache_sides_;  // one for each shard
  DecodeStep decode_step_;
  PrefillStep prefill_step_;
  std::map<uint64_t, std::unique_ptr<Sequence>> sequences_;
  uint64_t next_plan_ = 1;
  std::vector<float> prompt_logits_;
};

}  // namespace winnow::test
