#pragma once
#include <string>
#include <vector>

#include "common/model/model_config.h"

namespace winnow {

// Names of the tensors of one decoder layer, as its family has them; what a model does not have is empty. Projections
// are prefixes, before ".weight" and ".bias"; several of them are stacked, output by output.
struct LayerNames {
  std::string attention_norm;       // before attention
  std::string attention_post_norm;  // of what attention gives, before it is added to the residual
  std::string mlp_norm;             // before the MLP
  std::string mlp_post_norm;        // of what the MLP gives
  // Outputs: q heads, k heads, v heads; in one tensor or three. Of latent attention: what queries are made of, then
  // latent and turning part of the key.
  std::vector<std::string> qkv;
  std::string q_norm, k_norm;
  std::string o;
  // Of latent attention.
  std::string query_latent_norm, query_up;  // where queries have a latent
  std::string key_latent_norm, key_value_up;
  std::string index_query, index_key, index_weight, index_norm, index_norm_bias;  // of its indexer
  // Of linear attention (GatedDeltaConfig), in the place of attention's: qkv ends with what gates the output.
  std::vector<std::string> rates;  // what value heads learn and what they forget: by_key_head, or one after the other
  std::string conv, log_forgetting, rate_bias, delta_norm;
  std::string sinks;                 // [num_query_heads]
  std::vector<std::string> gate_up;  // of the dense MLP, or the shared expert: gate, then up, in one or two
  std::string down;
  std::string shared_gate;        // a row: the logit of the shared expert's share
  std::string router;             // [num_experts, hidden_size]
  std::string router_correction;  // [num_experts]
  // One tensor each for all experts. Of gpt-oss [num_experts, in_features, out_features], gate and up outputs in turn,
  // with biases; of others [num_experts, out_features, in_features], gate outputs and then up. Not projections: "_bias"
  // follows.
  std::string fused_gate_up, fused_down;
  struct Expert {
    std::vector<std::string> gate_up;
    std::string down;
  };
  std::vector<Expert> experts;
};
LayerNames LayerNamesOf(const ModelConfig& config, int layer);

// "<projection>.weight" of each.
std::vector<std::string> WeightsOf(const std::vector<std::string>& projections);
// "<projection>.bias" of each.
std::vector<std::string> BiasesOf(const std::vector<std::string>& projections);

}  // namespace winnow
