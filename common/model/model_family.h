#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "common/model/moe_config.h"

namespace winnow {

enum class ModelFamily : uint8_t {
  kLlama,
  kMistral,
  kQwen2,
  kQwen3,
  kMixtral,
  kQwen2Moe,
  kQwen3Moe,
  kQwen3Next,
  kQwen35,
  kQwen35Moe,
  kPhi3,
  kOlmo2,
  kOlmo3,
  kGemma2,
  kGemma3,
  kGptOss,
  kGlm4Moe,
  kDeepseekV2,
  kDeepseekV3,
  kDeepseekV32,
  kGlmMoeDsa,
};
const char* ModelFamilyName(ModelFamily family);  // the architecture in config.json, e.g. "LlamaForCausalLM"

// What the MLP does with its gate and up parts.
enum class Activation : uint8_t { kSilu, kGeluTanh, kClampedSilu };
// What q and k are normalised by before RoPE: nothing, each head, or all heads of the projection as one vector.
enum class QkNorm : uint8_t { kNone, kHead, kProjection };
// Where a layer has RMSNorms: before attention and MLP, after them and before the residual is added, or both.
enum class NormPlacement : uint8_t { kBefore, kAfter, kBoth };

// What a family is, beside what its config.json says: the defaults of transformers' configuration classes, and how its
// layers are built.
struct FamilyTraits {
  ModelFamily family;
  const char* architecture;
  const char* model_type;
  int64_t default_max_position_embeddings;
  int64_t default_head_dim = 0;  // 0: hidden_size / num_attention_heads
  bool qkv_bias = false;         // unless attention_bias says otherwise
  bool o_bias_follows = false;   // what attention_bias is holds for o_proj, too
  QkNorm qk_norm = QkNorm::kNone;
  MoeFields moe = MoeFields::kNone;
  NormPlacement norms = NormPlacement::kBefore;
  Activation activation = Activation::kSilu;
  bool fused_projections = false;  // q, k and v are one tensor, and gate and up
  double default_rms_norm_eps = 1e-6;
  bool latent_attention = false;      // keys and values come from a latent (common/model/latent_config.h) ...
  bool indexer = false;               // ... and the model's own indexer chooses what is attended to
  bool partial_rotary = false;        // a part of a head's elements may turn ...
  double default_partial_rotary = 1;  // ... of so large a share
  bool window_rope = false;           // layers with a sliding window have a rotary embedding of their own
  bool gated_delta = false;           // most layers are linear attention (common/model/gated_delta_config.h), and the
                                      // others have a gate of what they attended to
};

// The family of that architecture, or of that model_type; null when it is not supported.
const FamilyTraits* FamilyOfArchitecture(std::string_view architecture);
const FamilyTraits* FamilyOfModelType(std::string_view model_type);

// "LlamaForCausalLM, ... and Qwen3MoeForCausalLM", for errors.
std::string SupportedArchitectures();

}  // namespace winnow
