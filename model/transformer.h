#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/model/model_config.h"
#include "common/model/rope.h"
#include "kernels/kernel_table.h"
#include "model/expert_mlp.h"
#include "model/forward.h"
#include "model/indexed_prefill.h"
#include "model/latent_attention.h"
#include "model/linear_attention.h"
#include "model/weights/weights.h"

namespace winnow {

// The forward pass of all families (common/model/model_family.h) on the CPU, in paper order, calling only the kernel
// table. Holds the activations; weights, kernels and executor are borrowed.
class Transformer final : public Forward {
 public:
  Transformer(const ModelConfig& config, const ModelWeights& weights, const KernelTable& kernels, Executor& executor,
              Dtype kv_dtype, int max_prefill_tokens, uint32_t max_slots_per_list);

  std::span<float> DecodeByLayer(std::span<const uint32_t> token_ids, std::span<const uint32_t> positions,
                                 DecodeKv& kv) override;
  std::span<float> Prefill(std::span<const uint32_t> token_ids, uint32_t first_position, bool last,
                           PrefillKv& kv) override;
  bool CutsChunksByLayer() const override { return true; }
  void EmbedPrompt(std::span<const uint32_t> token_ids, ResidualPlaces hidden) override { Embed(token_ids, hidden[0]); }
  void PrefillLayer(int layer, uint32_t first_position, int num_tokens, bool last, ResidualPlaces hidden,
                    PrefillKv& kv) override {
    PrefillLayer(layer, first_position, num_tokens, last, hidden[0], kv);
  }
  // A prefix's state knows of no window and no sink, and not what an indexer chooses. What a hybrid model has between
  // two layers changes the residual.
  bool CutsLayersAtAttention() const override {
    return config_.windows.empty() && !config_.attention_sinks && !indexed_ && !linear_;
  }
  void ProjectPrompt(int layer, uint32_t first_position, int num_tokens, bool last, const float* hidden, PrefillKv& kv,
                     float* queries) override;
  void AttendPrompt(int layer, uint32_t first_position, int num_tokens, bool last, const PromptAttention& attention,
                    float* hidden) override;
  std::span<float> PromptLogits(ResidualPlaces hidden) override { return Logits(hidden[0], 1); }
  const RopeTable& rope() const override { return rope_; }
  float attention_scale() const override { return scale_; }
  float attention_softcap() const override { return config_.attention_softcap; }

 private:
  using Matmul = void (*)(Executor&, const MatmulParams&);
  void Embed(std::span<const uint32_t> token_ids, float* x);
  const RopeTable& RopeOf(int layer) const { return config_.window(layer) > 0 ? window_rope_ : rope_; }
  void ProjectQkv(Matmul matmul, int layer, const float* x, int num_rows, std::span<const uint32_t> positions);
  void PrefillLayer(int layer, uint32_t first_position, int num_tokens, bool last, float* hidden, PrefillKv& kv);
  void PredictQueries(int layer, int num_rows);
  // Brings heads of which a part turns, [num_rows] x stride: [num_heads, head_dim], to the form that turning pairs have
  // in any head (ModelConfig::HeadShape).
  void OrderHeads(float* heads, int64_t stride, int num_rows, int num_heads);
  // Of projections with gates, [num_rows] x stride: [query, gate] of each head and what follows them: the gates go to
  // `gates` [num_rows, q_features], and the queries and what follows move together.
  void TakeGates(float* projected, int64_t stride, int num_rows, float* gates);
  // What attention gave, times its gates where there are any.
  void GateAttention(int num_rows);
  // Layers with a state that belong to the layer with rows number `kv_layer`, and those behind the last of these.
  void LinearLayersBefore(Matmul matmul, int kv_layer, float* x, int num_rows, std::span<const StatePiece> pieces);
  void LinearLayersBehind(Matmul matmul, float* x, int num_rows, std::span<const StatePiece> pieces);
  void LinearLayers(Matmul matmul, int first, int end, float* x, int num_rows, std::span<const StatePiece> pieces);
  // The rows and queries of a piece of a prompt; returns where its rows are.
  PrefillKv::Rows ProjectPiece(int layer, uint32_t first_position, int num_tokens, bool last, const float* hidden,
                               PrefillKv& kv);
  // Attention of a piece of a prompt to all rows, or to those that the model's indexer chooses.
  void AttendToPrompt(int layer, uint32_t first_position, int num_tokens, const PromptAttention& attention);
  void MergePartials(std::span<const PartialAttention> partials);
  // x += what the product gives, normalised where `norm` is given.
  void AddProduct(Matmul matmul, const MatmulParams& product, std::span<const float> norm, float* x);
  void OutputAndMlp(Matmul matmul, const LayerWeights& layer, float* x, const float* attention, int num_rows);
  // The same from what the output projection reads.
  void ProductAndMlp(Matmul matmul, const LayerWeights& layer, float* x, const float* attended, int num_rows);
  void DenseMlp(Matmul matmul, const LayerWeights& layer, float* x, int num_rows);
  std::span<float> Logits(const float* x, int num_rows);

  const ModelConfig& config_;
  const ModelWeights& weights_;
  const KernelTable& kernels_;
  Executor& executor_;
  const Dtype kv_dtype_;
  const KvLayout layout_;
  const RopeTable rope_;         // of layers that attend to everything, which are those that rows are selected for
  const RopeTable window_rope_;  // of the others
  const float scale_;
  const int max_rows_;
  std::vector<int> kv_layers_;  // which of the model's layers have rows

  std::vector<float> x_;                 // [max_rows, hidden_size] residual stream
  std::vector<float> qkv_;               // [max_rows, qkv_features]
  std::vector<float> q_pre_rope_;        // [max_rows, q_features]
  std::vector<float> q_;                 // [max_rows, q_features]
  std::vector<float> prediction_;        // [kMaxDecodeRows, q_features]
  std::vector<std::byte> kv_rows_;       // [max_rows, num_kv_heads] rows
  std::vector<float> attention_;         // [max_rows, q_features]
  std::vector<float> gates_;             // [max_rows, q_features] of models that have them
  std::vector<float> prediction_gates_;  // [kMaxDecodeRows, q_features], which nothing reads
  std::vector<float> lse_;       // [kMaxDecodeRows, num_query_heads] of attention_, in steps that wait for partials
  std::vector<float> merged_;    // [group_size, head_dim]
  std::vector<float> unnormed_;  // [max_rows, hidden_size] where layers have norms after attention and MLP
  std::vector<float> gate_up_;   // [max_rows, 2 * the widest dense MLP's intermediate size]
  std::optional<LatentAttention> latent_;
  std::optional<LinearAttention> linear_;  // of hybrid models
  std::vector<StatePiece> pieces_;
  std::optional<IndexedPrefill> indexed_;  // of models with an indexer
  std::optional<ExpertMlp> experts_;       // of a mixture of experts
  std::vector<float> logits_;              // [kMaxDecodeRows, vocab_size]
  std::vector<uint32_t> positions_;
  SlotLists slot_lists_;
  std::vector<std::byte> attention_scratch_;
  const void* slot_pool_ = nullptr;

 public:
  // Where decode attention finds its slots; set once before the first Decode.
  void set_slot_pool(const void* rows) { slot_pool_ = rows; }
};

}  // namespace winnow
