#include "common/model/synthetic_models.h"

#include <cmath>

#include "common/base/status.h"
#include "common/model/rope.h"

namespace winnow {
namespace {

constexpr int64_t kMaxContextTokens = 1 << 20;
constexpr std::string_view kFp8Suffix = "-fp8", kInt4Suffix = "-int4";

struct SyntheticModel {
  std::string_view name;
  ModelFamily family;
  int num_layers, hidden_size, intermediate_size, num_query_heads, num_kv_heads, vocab_size;
  bool tie_word_embeddings;
  int num_experts = 0, experts_per_token = 0, expert_size = 0;
};

// From the config.json of Qwen/Qwen3-*, meta-llama/Llama-3.1-8B, openai/gpt-oss-20b and
// deepseek-ai/DeepSeek-V2-Lite. head_dim is 128 in all of them but the last two.
constexpr SyntheticModel kModels[] = {
    {"deepseek-v2-lite", ModelFamily::kDeepseekV2, 27, 2048, 10944, 16, 1, 102400, false, 64, 6, 1408},
    {"gpt-oss-20b", ModelFamily::kGptOss, 24, 2880, 2880, 64, 8, 201088, false, 32, 4, 2880},
    {"llama3-8b", ModelFamily::kLlama, 32, 4096, 14336, 32, 8, 128256, false},
    {"qwen3-0.6b", ModelFamily::kQwen3, 28, 1024, 3072, 16, 8, 151936, true},
    {"qwen3-8b", ModelFamily::kQwen3, 36, 4096, 12288, 32, 8, 151936, false},
    {"qwen3-14b", ModelFamily::kQwen3, 40, 5120, 17408, 40, 8, 151936, false},
    {"qwen3-30b-a3b", ModelFamily::kQwen3Moe, 48, 2048, 6144, 32, 4, 151936, false, 128, 8, 768},
    {"qwen3-32b", ModelFamily::kQwen3, 64, 5120, 25600, 64, 8, 151936, false},
};

// What gpt-oss has beside what the others have.
void AddGptOss(ModelConfig& config) {
  config.head_dim = config.rotary_dim = 64;
  config.rms_norm_eps = 1e-5f;
  config.qkv_bias = config.o_bias = config.attention_sinks = config.moe.biases = true;
  config.qk_norm = false;
  config.activation = Activation::kClampedSilu;
  config.quantization.format = WeightQuantization::Format::kMxfp4;  // of the experts
  config.quantization.method = "mxfp4";
  config.rope = {.type = RopeType::kYarn,
                 .theta = 150000,
                 .factor = 32,
                 .original_max_position_embeddings = 4096,
                 .truncate = false};
  for (int layer = 0; layer < config.num_layers; ++layer) config.windows.push_back(layer % 2 == 0 ? 128 : 0);
}

// What DeepSeek-V2-Lite has beside what the others have: queries without a latent, a dense layer before the sparse
// ones.
void AddDeepseekV2Lite(ModelConfig& config) {
  config.latent = {.shape = {.rank = 512, .rope_dim = 64},
                   .query_rank = 0,
                   .nope_dim = 128,
                   .value_dim = 128,
                   .interleaved = true,
                   .indexer = {}};
  config.head_dim = config.latent->shape.key_dim();
  config.rotary_dim = config.latent->shape.rope_dim;
  config.qk_norm = false;
  config.rope = {.type = RopeType::kYarn,
                 .theta = 10000,
                 .factor = 40,
                 .original_max_position_embeddings = 4096,
                 .mscale = 0.707,
                 .mscale_all_dim = 0.707};
  const auto mscale = static_cast<float>(YarnMscale(config.rope.factor, config.rope.mscale_all_dim));
  config.attention_scale = mscale * mscale / std::sqrt(static_cast<float>(config.latent->query_dim()));
  config.moe.normalizes = false;
  config.moe.shared_intermediate_size = 2 * config.moe.intermediate_size;
  config.moe.sparse_layers[0] = false;
}

ModelConfig ConfigOf(const SyntheticModel& model) {
  const bool llama = model.family == ModelFamily::kLlama;
  ModelConfig config;
  config.family = model.family;
  config.num_layers = model.num_layers;
  config.hidden_size = model.hidden_size;
  config.intermediate_size = model.intermediate_size;
  config.num_query_heads = model.num_query_heads;
  config.num_kv_heads = model.num_kv_heads;
  config.head_dim = config.rotary_dim = 128;
  config.vocab_size = model.vocab_size;
  config.rms_norm_eps = llama ? 1e-5f : 1e-6f;
  config.qk_norm = !llama;
  config.tie_word_embeddings = model.tie_word_embeddings;
  config.rope.theta = llama ? 500000 : 1000000;
  if (llama) {
    config.rope.type = RopeType::kLlama3;
    config.rope.factor = 8;
    config.rope.original_max_position_embeddings = 8192;
  }
  if (model.num_experts > 0) {
    config.moe = {.num_experts = model.num_experts,
                  .experts_per_token = model.experts_per_token,
                  .intermediate_size = model.expert_size,
                  .normalizes = true,
                  .sparse_layers = std::vector<bool>(static_cast<size_t>(model.num_layers), true)};
  }
  if (model.family == ModelFamily::kGptOss) AddGptOss(config);
  if (model.family == ModelFamily::kDeepseekV2) AddDeepseekV2Lite(config);
  config.max_context_tokens = kMaxContextTokens;
  return config;
}

// As published checkpoints of these models are: Qwen3-*-FP8, Qwen3-*-AWQ.
WeightQuantization QuantizationOf(std::string_view suffix) {
  const bool fp8 = suffix == kFp8Suffix;
  WeightQuantization quantization;
  quantization.format = fp8 ? WeightQuantization::Format::kFp8 : WeightQuantization::Format::kAwq;
  quantization.method = fp8 ? "fp8" : "awq";
  quantization.bits = fp8 ? 8 : 4;
  quantization.block_rows = fp8 ? 128 : 1;
  quantization.block_columns = 128;
  quantization.has_zeros = !fp8;
  return quantization;
}

}  // namespace

bool IsSyntheticModel(std::string_view model) {
  return model.starts_with(kSyntheticPrefix);
}

absl::StatusOr<ModelConfig> SyntheticModelConfig(std::string_view model) {
  std::string_view name = model;
  if (IsSyntheticModel(name)) name.remove_prefix(kSyntheticPrefix.size());
  for (const SyntheticModel& known : kModels) {
    if (!name.starts_with(known.name)) continue;
    const std::string_view suffix = name.substr(known.name.size());
    const bool quantised = suffix == kFp8Suffix || suffix == kInt4Suffix;
    if (!suffix.empty() && !(quantised && known.num_experts == 0)) continue;
    ModelConfig config = ConfigOf(known);
    if (quantised) config.quantization = QuantizationOf(suffix);
    return config;
  }
  return absl::NotFoundError(
      absl::StrCat("there is no synthetic model \"", AbslSv(name), "\"; there are ", SyntheticModelNames()));
}

absl::StatusOr<ModelConfig> ModelConfigOf(const std::string& model) {
  return IsSyntheticModel(model) ? SyntheticModelConfig(model) : LoadModelConfig(model);
}

std::string SyntheticModelNames() {
  std::string names;
  for (const SyntheticModel& known : kModels) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", AbslSv(kSyntheticPrefix), AbslSv(known.name));
  }
  absl::StrAppend(&names, "; those without experts also quantised, with ", AbslSv(kFp8Suffix),
                  " (blocks of 128 x 128) or ", AbslSv(kInt4Suffix), " (groups of 128) behind the name");
  return names;
}

}  // namespace winnow
