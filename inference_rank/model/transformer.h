#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "common/model/model_config.h"
#include "common/model/rope.h"
#include "inference_rank/model/weights.h"
#include "kernels/kernel_table.h"

namespace winnow {

inline constexpr int kMaxDecodeRows = 64;

// What one decode layer offers before its attention. All [num_rows, ...], valid until the next layer.
struct DecodeLayerOutput {
  int layer = 0;
  const std::byte* kv_rows = nullptr;  // [num_rows, num_kv_heads, 2 * head_dim] kv dtype
  const float* q_pre_rope = nullptr;   // [num_rows, num_query_heads, head_dim]
  const float* prediction =
      nullptr;  // same shape: queries predicted for prediction_layer, before RoPE; null when there are none
  int prediction_layer = 0;
  const float* hidden = nullptr;  // [num_rows, hidden_size] residual that enters the layer
  int hidden_size = 0;
};

// The slots that a layer's attention reads: lists in the order of the query heads, row by row, each of them read by the
// next `heads` query heads, which belong to one kv head. The slots stay the caller's.
class SlotLists {
 public:
  void Clear() {
    slots_.clear();
    counts_.clear();
    heads_.clear();
    num_heads_ = head_slots_ = 0;
  }
  void Add(std::span<const uint32_t> slots, int heads) {
    slots_.push_back(slots.data());
    counts_.push_back(static_cast<uint32_t>(slots.size()));
    heads_.push_back(static_cast<uint32_t>(heads));
    num_heads_ += heads;
    head_slots_ += slots.size() * heads;
  }

  size_t size() const { return slots_.size(); }
  std::span<const uint32_t> slots(size_t list) const { return {slots_[list], counts_[list]}; }
  const uint32_t* const* slots() const { return slots_.data(); }
  const uint32_t* counts() const { return counts_.data(); }
  const uint32_t* heads() const { return heads_.data(); }
  size_t num_heads() const { return num_heads_; }    // over all lists
  size_t head_slots() const { return head_slots_; }  // one that two heads read counts twice

 private:
  std::vector<const uint32_t*> slots_;
  std::vector<uint32_t> counts_, heads_;
  size_t num_heads_ = 0, head_slots_ = 0;
};

// A partial attention state over rows that are not resident, to be merged after the layer's own attention.
struct PartialAttention {
  int row = 0;
  int kv_head = 0;
  const float* o = nullptr;    // [group_size, head_dim]
  const float* lse = nullptr;  // [group_size] natural log
};

// The KV side of a decode step, implemented by the engine.
class DecodeKv {
 public:
  virtual ~DecodeKv() = default;
  // Layers ahead that queries are to be predicted for, 0 = not at all.
  virtual int Lookahead() const = 0;
  // The layer's rows and queries exist: make the rows resident, send everything to the cache rank.
  virtual void Publish(const DecodeLayerOutput& output) = 0;
  // Returns when the slots to attend to at `layer` are known and filled: adds the lists of all heads of all rows.
  virtual void AwaitSlots(int layer, SlotLists& lists) = 0;
  // True when AwaitPartials may return something in this step.
  virtual bool WaitsForPartials() const { return false; }
  // After the layer's attention: returns when it is known which heads are to be corrected, and how; at most one state
  // per row and kv head. Valid until the next layer's Publish.
  virtual std::span<const PartialAttention> AwaitPartials(int /*layer*/) { return {}; }
};

// The KV side of a prefill chunk. `kv_rows` [num_tokens, num_kv_heads, 2 * head_dim]; `q_pre_rope` [num_tokens,
// num_query_heads, head_dim]. Returns where attention finds rows 0 .. first_position + num_tokens - 1 of the layer.
class PrefillKv {
 public:
  struct Rows {
    const void* kv = nullptr;  // [num_kv_heads] x head_stride rows
    int64_t head_stride = 0;   // in rows
  };
  virtual ~PrefillKv() = default;
  virtual Rows Publish(int layer, const std::byte* kv_rows, const float* q_pre_rope) = 0;
};

// The forward pass of the Llama, Mistral and Qwen families, in paper order, calling only the kernel table. Holds the
// activations; weights, kernels and executor are borrowed. Used by one thread.
class Transformer {
 public:
  Transformer(const ModelConfig& config, const ModelWeights& weights, const KernelTable& kernels, Executor& executor,
              Dtype kv_dtype, int max_prefill_tokens, uint32_t max_slots_per_list);

  // One position of each of `token_ids.size()` (<= kMaxDecodeRows) sequences. Returns logits [num_rows, vocab_size],
  // overwritten by the next call.
  std::span<float> Decode(std::span<const uint32_t> token_ids, std::span<const uint32_t> positions, DecodeKv& kv);

  // A chunk of one prompt. `last`: it is the prompt's last token, alone; returns its logits, otherwise nothing.
  std::span<float> Prefill(std::span<const uint32_t> token_ids, uint32_t first_position, bool last, PrefillKv& kv);

  const RopeTable& rope() const { return rope_; }
  float attention_scale() const { return scale_; }

 private:
  using Matmul = void (*)(Executor&, const MatmulParams&);
  void Embed(std::span<const uint32_t> token_ids);
  void ProjectQkv(Matmul matmul, const LayerWeights& layer, int num_rows, std::span<const uint32_t> positions);
  void PredictQueries(int layer, int num_rows);
  void MergePartials(std::span<const PartialAttention> partials);
  void OutputAndMlp(Matmul matmul, const LayerWeights& layer, float* x, const float* attention, int num_rows);
  std::span<float> Logits(const float* x, int num_rows);

  const ModelConfig& config_;
  const ModelWeights& weights_;
  const KernelTable& kernels_;
  Executor& executor_;
  const Dtype kv_dtype_;
  const RopeTable rope_;
  const float scale_;
  const int max_rows_;

  std::vector<float> x_;            // [max_rows, hidden_size] residual stream
  std::vector<float> qkv_;          // [max_rows, qkv_features]
  std::vector<float> q_pre_rope_;   // [max_rows, q_features]
  std::vector<float> q_;            // [max_rows, q_features]
  std::vector<float> prediction_;   // [kMaxDecodeRows, q_features]
  std::vector<std::byte> kv_rows_;  // [max_rows, num_kv_heads, 2 * head_dim]
  std::vector<float> attention_;    // [max_rows, q_features]
  std::vector<float> lse_;          // [kMaxDecodeRows, num_query_heads] of attention_, in steps that wait for partials
  std::vector<float> merged_;       // [group_size, head_dim]
  std::vector<float> gate_up_;      // [max_rows, 2 * intermediate_size]
  std::vector<float> logits_;       // [kMaxDecodeRows, vocab_size]
  std::vector<uint32_t> positions_;
  SlotLists slot_lists_;
  std::vector<std::byte> attention_scratch_;
  const void* slot_pool_ = nullptr;

 public:
  // Where decode attention finds its slots; set once before the first Decode.
  void set_slot_pool(const void* rows) { slot_pool_ = rows; }
};

}  // namespace winnow
