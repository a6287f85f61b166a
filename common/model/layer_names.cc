#include "common/model/layer_names.h"

#include "absl/strings/str_cat.h"
#include "common/model/model_tensors.h"

namespace winnow {
namespace {

void NameExperts(const ModelConfig& config, int layer, LayerNames& names) {
  if (config.moe.stored_fused) {
    names.router = LayerTensor(layer, config.family == ModelFamily::kGptOss ? "mlp.router" : "mlp.gate");
    names.fused_gate_up = LayerTensor(layer, "mlp.experts.gate_up_proj");
    names.fused_down = LayerTensor(layer, "mlp.experts.down_proj");
    return;
  }
  const bool mixtral = config.family == ModelFamily::kMixtral;
  const std::string block = LayerTensor(layer, mixtral ? "block_sparse_moe" : "mlp");
  names.router = block + ".gate";
  if (config.moe.correction) names.router_correction = names.router + ".e_score_correction_bias";
  for (int i = 0; i < config.moe.num_experts; ++i) {
    const std::string expert = absl::StrCat(block, ".experts.", i);
    if (mixtral) {
      names.experts.push_back({.gate_up = {expert + ".w1", expert + ".w3"}, .down = expert + ".w2"});
    } else {
      names.experts.push_back({.gate_up = {expert + ".gate_proj", expert + ".up_proj"}, .down = expert + ".down_proj"});
    }
  }
}

void NameNorms(const ModelConfig& config, int layer, LayerNames& names) {
  const auto at = [layer](std::string_view suffix) { return LayerTensor(layer, suffix); };
  switch (config.norms) {
    case NormPlacement::kBefore:
      names.attention_norm = at("input_layernorm.weight");
      names.mlp_norm = at("post_attention_layernorm.weight");
      break;
    case NormPlacement::kAfter:
      names.attention_post_norm = at("post_attention_layernorm.weight");
      names.mlp_post_norm = at("post_feedforward_layernorm.weight");
      break;
    case NormPlacement::kBoth:
      names.attention_norm = at("input_layernorm.weight");
      names.attention_post_norm = at("post_attention_layernorm.weight");
      names.mlp_norm = at("pre_feedforward_layernorm.weight");
      names.mlp_post_norm = at("post_feedforward_layernorm.weight");
      break;
  }
}

void NameLatentAttention(const LatentConfig& latent, int layer, LayerNames& names) {
  const auto at = [layer](std::string_view suffix) { return LayerTensor(layer, "self_attn." + std::string(suffix)); };
  names.qkv = {at(latent.query_rank > 0 ? "q_a_proj" : "q_proj"), at("kv_a_proj_with_mqa")};
  if (latent.query_rank > 0) {
    names.query_latent_norm = at("q_a_layernorm.weight");
    names.query_up = at("q_b_proj");
  }
  names.key_latent_norm = at("kv_a_layernorm.weight");
  names.key_value_up = at("kv_b_proj");
  if (latent.indexer.num_heads == 0) return;
  names.index_query = at("indexer.wq_b");
  names.index_key = at("indexer.wk");
  names.index_weight = at("indexer.weights_proj");
  names.index_norm = at("indexer.k_norm.weight");
  names.index_norm_bias = at("indexer.k_norm.bias");
}

void NameLinearAttention(const GatedDeltaConfig& delta, int layer, LayerNames& names) {
  const auto at = [layer](std::string_view suffix) { return LayerTensor(layer, "linear_attn." + std::string(suffix)); };
  if (delta.by_key_head) {
    names.qkv = {at("in_proj_qkvz")};
    names.rates = {at("in_proj_ba")};
  } else {
    names.qkv = {at("in_proj_qkv"), at("in_proj_z")};
    names.rates = {at("in_proj_b"), at("in_proj_a")};
  }
  names.conv = at("conv1d.weight");
  names.log_forgetting = at("A_log");
  names.rate_bias = at("dt_bias");
  names.delta_norm = at("norm.weight");
  names.o = at("out_proj");
}

void NameAttention(const ModelConfig& config, int layer, LayerNames& names) {
  const auto at = [layer](std::string_view suffix) { return LayerTensor(layer, "self_attn." + std::string(suffix)); };
  if (config.latent) {
    NameLatentAttention(*config.latent, layer, names);
  } else if (config.fused_projections) {
    names.qkv = {at("qkv_proj")};
  } else {
    names.qkv = {at("q_proj"), at("k_proj"), at("v_proj")};
  }
  names.o = at("o_proj");
  if (config.qk_norm) {
    names.q_norm = at("q_norm.weight");
    names.k_norm = at("k_norm.weight");
  }
  if (config.attention_sinks) names.sinks = at("sinks");
}

std::vector<std::string> WithSuffix(const std::vector<std::string>& projections, const char* suffix) {
  std::vector<std::string> names;
  for (const std::string& projection : projections) names.push_back(projection + suffix);
  return names;
}

}  // namespace

LayerNames LayerNamesOf(const ModelConfig& config, int layer) {
  const auto at = [layer](std::string_view suffix) { return LayerTensor(layer, suffix); };
  LayerNames names;
  NameNorms(config, layer, names);
  if (config.is_delta(layer)) {
    NameLinearAttention(*config.delta, layer, names);
  } else {
    NameAttention(config, layer, names);
  }
  const bool sparse = config.moe.IsSparse(layer);
  if (config.mlp_features(layer) > 0) {
    // Qwen has one shared expert, with a gate; DeepSeek several, stored as one.
    const char* const shared = config.moe.shared_gate ? "mlp.shared_expert" : "mlp.shared_experts";
    const std::string mlp = at(sparse ? shared : "mlp");
    names.gate_up = {mlp + ".gate_proj", mlp + ".up_proj"};
    if (config.fused_projections) names.gate_up = {mlp + ".gate_up_proj"};
    names.down = mlp + ".down_proj";
    if (sparse && config.moe.shared_gate) names.shared_gate = at("mlp.shared_expert_gate");
  }
  if (sparse) NameExperts(config, layer, names);
  return names;
}

std::vector<std::string> WeightsOf(const std::vector<std::string>& projections) {
  return WithSuffix(projections, ".weight");
}

std::vector<std::string> BiasesOf(const std::vector<std::string>& projections) {
  return WithSuffix(projections, ".bias");
}

}  // namespace winnow
