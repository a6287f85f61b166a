#include "tests/support/tiny_checkpoint.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <random>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/status.h"

namespace winnow {
namespace {

// Round to nearest even; values are finite.
uint16_t ToBf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

// Round to nearest even through the representable neighbours; values are finite and below 65504.
uint16_t ToF16(float value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(static_cast<double>(value));
  if (magnitude < std::ldexp(1.0, -14)) {  // subnormal: multiples of 2^-24
    return static_cast<uint16_t>(sign | static_cast<uint16_t>(std::nearbyint(std::ldexp(magnitude, 24))));
  }
  int exponent = 0;
  std::frexp(magnitude, &exponent);  // magnitude in [2^(exponent-1), 2^exponent)
  const auto mantissa = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 11 - exponent)));  // [1024, 2048]
  return static_cast<uint16_t>(sign | (((exponent + 14) << 10) + (mantissa - 1024)));
}

void AppendElement(std::string& out, float value, Dtype dtype) {
  if (dtype == Dtype::kF32) {
    out.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return;
  }
  const uint16_t word = dtype == Dtype::kBf16 ? ToBf16(value) : ToF16(value);
  out.append(reinterpret_cast<const char*>(&word), sizeof(word));
}

const char* StoredName(Dtype dtype) {
  return dtype == Dtype::kF32 ? "F32" : dtype == Dtype::kBf16 ? "BF16" : "F16";
}

void WriteFile(const std::string& path, std::string_view contents) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(contents.data(), static_cast<std::streamsize>(contents.size()));
  file.close();
  WINNOW_CHECK(file.good());
}

// What a mixture of experts says beside the fields that all models have.
nlohmann::json MoeFieldsOf(MoeFields fields) {
  switch (fields) {
    case MoeFields::kNone:
      return nlohmann::json::object();
    case MoeFields::kGptOss:
    case MoeFields::kMixtral:
      return {{"num_local_experts", 5}, {"num_experts_per_tok", 2}};
    case MoeFields::kDeepseekV2:
      return {{"n_routed_experts", 8},
              {"num_experts_per_tok", 3},
              {"moe_intermediate_size", 40},
              {"n_shared_experts", 2},
              {"n_group", 4},
              {"topk_group", 2},
              {"routed_scaling_factor", 2},
              {"norm_topk_prob", false},
              {"topk_method", "group_limited_greedy"},
              {"first_k_dense_replace", 1}};
    case MoeFields::kDeepseek:
      return {{"n_routed_experts", 8},
              {"num_experts_per_tok", 3},
              {"moe_intermediate_size", 40},
              {"n_shared_experts", 2},
              {"n_group", 4},
              {"topk_group", 2},
              {"routed_scaling_factor", 1.5},
              {"norm_topk_prob", true},
              {"first_k_dense_replace", 1}};
    case MoeFields::kQwen35:
    case MoeFields::kQwen3Next:
    case MoeFields::kQwen2:
      return {{"num_experts", 6},
              {"num_experts_per_tok", 3},
              {"moe_intermediate_size", 40},
              {"shared_expert_intermediate_size", 72}};
    case MoeFields::kQwen3:
      return {{"num_experts", 6}, {"num_experts_per_tok", 3}, {"moe_intermediate_size", 40}, {"norm_topk_prob", true}};
  }
  return nlohmann::json::object();
}

}  // namespace

std::string SafetensorsBytes(std::string_view header, std::string_view data) {
  const uint64_t header_bytes = header.size();
  std::string out(reinterpret_cast<const char*>(&header_bytes), sizeof(header_bytes));
  out.append(header);
  out.append(data);
  return out;
}

std::string SafetensorsBytes(std::span<const TensorToWrite> tensors) {
  nlohmann::json header = {{"__metadata__", {{"format", "pt"}}}};
  std::string data;
  for (const TensorToWrite& tensor : tensors) {
    const size_t begin = data.size();
    for (const float value : tensor.values) AppendElement(data, value, tensor.dtype);
    header[tensor.name] = {
        {"dtype", StoredName(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  return SafetensorsBytes(text, data);
}

nlohmann::json TinyConfigJson(const TinyModel& model) {
  const FamilyTraits& family = *FamilyOfArchitecture(ModelFamilyName(model.family));
  nlohmann::json config = {
      {"architectures", {ModelFamilyName(model.family)}},
      {"model_type", family.model_type},
      {"hidden_size", model.hidden_size},
      {"intermediate_size", model.intermediate_size},
      {"num_hidden_layers", model.num_layers},
      {"num_attention_heads", model.num_query_heads},
      {"num_key_value_heads", model.num_kv_heads},
      {"head_dim", model.head_dim},
      {"vocab_size", model.vocab_size},
      {"max_position_embeddings", model.max_position_embeddings},
      {"rms_norm_eps", 1e-6},
      {"hidden_act", "silu"},
      {"mlp_bias", model.mlp_bias},
      {"tie_word_embeddings", model.tie_word_embeddings},
      {"rope_parameters", model.rope_parameters},
      {"bos_token_id", 1},
      {"eos_token_id", 2},
  };
  // Families with biases of their own keep them.
  if (!family.qkv_bias) config["attention_bias"] = model.attention_bias;
  config.update(MoeFieldsOf(family.moe));
  const bool is_gemma2 = model.family == ModelFamily::kGemma2, is_gemma3 = model.family == ModelFamily::kGemma3;
  if (family.window_rope || model.family == ModelFamily::kGptOss || is_gemma2) config["sliding_window"] = 24;
  if (is_gemma2 || is_gemma3) {
    config.erase("hidden_act");
    config.update({{"hidden_activation", "gelu_pytorch_tanh"}, {"query_pre_attn_scalar", 20}});
  }
  // Caps that bend most scores of such a model.
  if (is_gemma2) config.update({{"attn_logit_softcapping", 1.5}, {"final_logit_softcapping", 3.0}});
  if (is_gemma3) config.update({{"sliding_window_pattern", 2}, {"rope_local_base_freq", 500.0}});
  if (family.latent_attention) {
    config.update({{"q_lora_rank", 40},
                   {"kv_lora_rank", 32},
                   {"qk_nope_head_dim", 24},
                   {"qk_rope_head_dim", 16},
                   {"v_head_dim", 20}});
  }
  if (family.gated_delta) {
    config.update({{"linear_num_key_heads", 2},
                   {"linear_num_value_heads", 4},
                   {"linear_key_head_dim", 12},
                   {"linear_value_head_dim", 20},
                   {"linear_conv_kernel_dim", 4},
                   {"full_attention_interval", 2}});
  }
  if (family.indexer) config.update({{"index_n_heads", 3}, {"index_head_dim", 32}, {"index_topk", 48}});
  config.update(model.extra_fields);
  return config;
}

std::vector<TensorToWrite> TinyTensors(const TinyModel& model) {
  const absl::StatusOr<ModelConfig> config = ParseModelConfig(TinyConfigJson(model).dump(), "", "tiny");
  WINNOW_CHECK(config.ok());
  std::mt19937 random(model.seed);
  std::vector<TensorToWrite> tensors;
  for (ExpectedTensor& expected : ExpectedTensors(*config)) {
    TensorToWrite tensor{.name = std::move(expected.name), .dtype = model.storage, .shape = std::move(expected.shape)};
    const bool is_norm = tensor.shape.size() == 1 && absl::StrContains(tensor.name, "norm");
    const bool is_embedding = tensor.name == kEmbeddingTensor;
    uint64_t count = 1;
    for (const uint64_t dim : tensor.shape) count *= dim;
    const double fan_in = tensor.shape.size() >= 2 && !is_embedding ? static_cast<double>(tensor.shape[1]) : 1.0;
    std::normal_distribution<double> normal(is_norm ? 1.0 : 0.0, is_norm ? 0.1 : 1.0 / std::sqrt(fan_in));
    tensor.values.resize(count);
    for (float& value : tensor.values) value = static_cast<float>(normal(random));
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

void WriteTinyCheckpoint(const TinyModel& model, const std::string& directory) {
  WriteFile(directory + "/config.json", TinyConfigJson(model).dump(2));
  WriteFile(directory + "/generation_config.json", R"({"eos_token_id": [2, 3]})");
  const std::vector<TensorToWrite> tensors = TinyTensors(model);
  if (model.num_files == 1) {
    WriteFile(directory + "/model.safetensors", SafetensorsBytes(tensors));
    return;
  }
  nlohmann::json index = {{"metadata", nlohmann::json::object()}, {"weight_map", nlohmann::json::object()}};
  const auto num_files = static_cast<size_t>(model.num_files);
  for (size_t i = 0; i < num_files; ++i) {
    const size_t begin = tensors.size() * i / num_files;
    const size_t end = tensors.size() * (i + 1) / num_files;
    const std::string name = absl::StrFormat("model-%05d-of-%05d.safetensors", i + 1, num_files);
    WriteFile(absl::StrCat(directory, "/", name), SafetensorsBytes(std::span(tensors).subspan(begin, end - begin)));
    for (size_t j = begin; j < end; ++j) index["weight_map"][tensors[j].name] = name;
  }
  WriteFile(directory + "/model.safetensors.index.json", index.dump(2));
}

}  // namespace winnow
