#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/kv_layout.h"
#include "common/model/quantized/weight_quantization.h"
#include "common/model/rope_config.h"

namespace winnow {

enum class ModelFamily : uint8_t { kLlama, kMistral, kQwen2, kQwen3 };
const char* ModelFamilyName(ModelFamily family);  // the architecture in config.json, e.g. "LlamaForCausalLM"

// The shape and semantics of a decoder-only model, all defaults resolved: pre-norm RMSNorm, grouped-query attention
// with RoPE, SwiGLU.
struct ModelConfig {
  ModelFamily family = ModelFamily::kLlama;
  int num_layers = 0;
  int hidden_size = 0;
  int intermediate_size = 0;
  int num_query_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int vocab_size = 0;
  float rms_norm_eps = 1e-6f;
  bool qkv_bias = false;
  bool o_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;  // RMSNorm of every query and key head before RoPE
  bool tie_word_embeddings = false;
  RopeConfig rope;
  WeightQuantization quantization;
  // Longest context that the model computes as it was meant to: its trained or RoPE-extended positions, at most its
  // sliding window.
  int64_t max_context_tokens = 0;
  std::vector<uint32_t> eos_token_ids;  // may be empty; generation_config.json's before config.json's
  std::optional<uint32_t> bos_token_id;
  std::vector<std::string> warnings;  // to be logged once: ignored fields, limits taken

  int group_size() const { return num_query_heads / num_kv_heads; }
  int q_features() const { return num_query_heads * head_dim; }
  int kv_features() const { return num_kv_heads * head_dim; }
  int qkv_features() const { return q_features() + 2 * kv_features(); }
  KvLayout kv_layout(Dtype dtype) const { return {num_layers, num_query_heads, num_kv_heads, head_dim, dtype}; }
};

// Parses config.json and, if there is one, generation_config.json (empty: none). `directory` goes into errors, which
// name file, field and what is supported.
absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view config_json, std::string_view generation_config_json,
                                             std::string_view directory);

// Reads both files of a model directory.
absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& directory);

}  // namespace winnow
