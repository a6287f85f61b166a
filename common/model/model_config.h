#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/kv_layout.h"
#include "common/model/gated_delta_config.h"
#include "common/model/latent_config.h"
#include "common/model/model_family.h"
#include "common/model/moe_config.h"
#include "common/model/quantized/weight_quantization.h"
#include "common/model/rope_config.h"

namespace winnow {

// The shape and semantics of a decoder-only model, all defaults resolved: RMSNorms, grouped-query attention with RoPE
// over all of the context or a window of it, and a gated MLP, one in a layer or experts.
struct ModelConfig {
  ModelFamily family = ModelFamily::kLlama;
  int num_layers = 0;
  int hidden_size = 0;
  int intermediate_size = 0;  // of a dense MLP
  int num_query_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int rotary_dim = 0;  // of a head, how many elements turn; those that are stored first
  int vocab_size = 0;
  float rms_norm_eps = 1e-6f;
  bool qkv_bias = false;
  bool o_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;             // RMSNorm of queries and keys before RoPE: of every head ...
  bool qk_norm_projection = false;  // ... or of all heads as one vector
  NormPlacement norms = NormPlacement::kBefore;
  bool norms_add_one = false;  // a norm multiplies with 1 + its stored weight
  Activation activation = Activation::kSilu;
  bool tie_word_embeddings = false;
  float embedding_scale = 1;
  float attention_scale = 0;       // of scores; 0: 1 / sqrt(head_dim)
  float attention_softcap = 0;     // scores become cap * tanh(score / cap); 0: they stay
  float final_logit_softcap = 0;   // logits become cap * tanh(logit / cap); 0: they stay
  bool attention_sinks = false;    // a learned score by query head takes part in every softmax, without a value
  bool fused_projections = false;  // q, k and v are stored as one tensor, and gate and up
  MoeConfig moe;
  // Of latent attention: there is one kv head, whose keys of head_dim elements are latent and turning part. Queries are
  // brought to that form before they meet keys, so that to everything but projections such a model has heads as others.
  std::optional<LatentConfig> latent;
  // Of a hybrid model: which layers keep a state in the place of rows, and its shape. To all that handles rows the
  // model has its other layers alone (num_kv_layers).
  std::optional<GatedDeltaConfig> delta;
  bool attention_gate = false;  // a query head's projection has a part that gates what the head attended to
  RopeConfig rope;
  // Of layers with a window, where they have one of their own.
  std::optional<RopeConfig> window_rope;
  // [num_layers]: position p of such a layer attends to (p - window, p]; 0: to everything. Empty: no layer has one.
  std::vector<uint32_t> windows;
  WeightQuantization quantization;
  // Longest context that the model computes as it was meant to: its trained or RoPE-extended positions.
  int64_t max_context_tokens = 0;
  std::vector<uint32_t> eos_token_ids;  // may be empty; generation_config.json's before config.json's
  std::optional<uint32_t> bos_token_id;
  std::vector<std::string> warnings;  // to be logged once: ignored fields, limits taken

  int group_size() const { return num_query_heads / num_kv_heads; }
  int q_features() const { return num_query_heads * head_dim; }
  int kv_features() const { return num_kv_heads * head_dim; }
  // Of the product that begins a layer: queries, keys and values, or what they are made of.
  int qkv_features() const {
    return query_projection_features() + (latent ? latent->shape.key_dim() : 2 * kv_features());
  }
  // Of its first part, which queries are made of.
  int query_projection_features() const {
    if (latent) return latent->query_features(num_query_heads);
    return attention_gate ? 2 * q_features() : q_features();
  }
  bool is_delta(int layer) const { return delta && delta->layers[static_cast<size_t>(layer)]; }
  // Layers with keys and values.
  int num_kv_layers() const { return delta ? num_layers - delta->num_layers() : num_layers; }
  // What a sequence keeps beside rows, in f32.
  size_t state_floats() const { return delta ? delta->state_floats() : 0; }
  // What attention gives the output projection.
  int o_features() const { return latent ? num_query_heads * latent->value_dim : q_features(); }
  // Where elements of a head belong that turn, which are stored first, and those that do not.
  LatentShape HeadShape() const { return {.rank = head_dim - rotary_dim, .rope_dim = rotary_dim}; }
  // Weights of the norms of q and k.
  int q_norm_features() const { return qk_norm_projection ? q_features() : head_dim; }
  int k_norm_features() const { return qk_norm_projection ? kv_features() : head_dim; }
  // How LongRoPE rotates depends on how long a context can get: no longer than this. At first that is
  // max_context_tokens.
  void ServeContextsOf(int64_t tokens) {
    rope.beyond_original = rope.type == RopeType::kLongRope && tokens > rope.original_max_position_embeddings;
  }
  uint32_t window(int layer) const { return windows.empty() ? 0 : windows[static_cast<size_t>(layer)]; }
  const RopeConfig& rope_of(int layer) const { return window(layer) > 0 && window_rope ? *window_rope : rope; }
  // Width of the MLP that every token goes through at `layer`: the dense one, or the shared expert; 0 without one.
  int mlp_features(int layer) const { return moe.IsSparse(layer) ? moe.shared_intermediate_size : intermediate_size; }
  // Intermediate size of the dense layers; 0 where all are sparse.
  int max_dense_mlp_features() const { return moe.num_sparse_layers() < num_layers ? intermediate_size : 0; }
  // Weights of the MLPs that one token is multiplied with, over all layers; of a mixture those of the experts that it
  // is sent to.
  double active_mlp_weights() const;
  KvLayout kv_layout(Dtype dtype) const {
    KvLayout layout{num_kv_layers(), num_query_heads, num_kv_heads, head_dim, dtype};
    if (latent) {
      layout.row = {.value_is_key = true, .index_dim = latent->indexer.head_dim};
      layout.num_index_heads = latent->indexer.num_heads;
    }
    return layout;
  }
};

// Parses config.json and, if there is one, generation_config.json (empty: none). `directory` goes into errors, which
// name file, field and what is supported.
absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view config_json, std::string_view generation_config_json,
                                             std::string_view directory);

// Reads both files of a model directory.
absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& directory);

}  // namespace winnow
