#include "tools/plan/roofline.h"

#include <algorithm>
#include <cmath>

#include "common/base/page_groups.h"

namespace winnow {
namespace {

// Weights of one layer's projections from and to latents, as they are multiplied (LatentWeights).
double LatentProjections(const ModelConfig& config) {
  if (!config.latent) return 0;
  const LatentConfig& latent = *config.latent;
  const double heads = config.num_query_heads, index_heads = latent.indexer.num_heads;
  return static_cast<double>(latent.query_rank) * (heads * latent.query_dim() + index_heads * latent.indexer.head_dim) +
         heads * config.head_dim * (latent.nope_dim + latent.value_dim) +
         static_cast<double>(config.hidden_size) * (latent.indexer.head_dim + index_heads);
}

}  // namespace

PlanScorer ScorerOf(const SelectionSpec& spec, double kv_element_bytes) {
  PlanScorer scorer{.key_element_bytes = kv_element_bytes,
                    .page_tokens = static_cast<int>(spec.page_tokens),
                    .candidate_factor = static_cast<int>(spec.candidate_factor),
                    .min_candidate_tokens = static_cast<int>(spec.min_candidate_tokens),
                    .score_all_below_tokens = static_cast<int>(spec.score_all_below_tokens),
                    .group_candidate_tokens = static_cast<int>(spec.group_candidate_tokens)};
  if (IsDense(spec) || spec.predictor == Predictor::kFixed) {
    scorer.kind = PlanScorer::Kind::kNone;
  } else if (spec.scorer == Scorer::kToken || spec.scorer == Scorer::kIndexer) {
    scorer.kind = PlanScorer::Kind::kAllKeys;
  } else if (spec.scorer == Scorer::kTwoStage) {
    scorer.kind = PlanScorer::Kind::kTwoStage;
  } else {
    scorer.kind = PlanScorer::Kind::kPages;
  }
  if (spec.key_copy == KeyCopy::kInt8) scorer.key_element_bytes = 1;
  if (spec.key_copy == KeyCopy::kInt4) scorer.key_element_bytes = 0.53125;
  return scorer;
}

PlanModel PlanModelOf(const ModelConfig& config, double weight_element_bytes, double kv_element_bytes) {
  const double hidden = config.hidden_size;
  const double attention =
      hidden * config.qkv_features() + static_cast<double>(config.o_features()) * hidden + LatentProjections(config);
  const double linear =
      config.delta ? hidden * (config.delta->projected_features() + config.delta->value_features()) : 0;
  const double head = hidden * config.vocab_size;
  const int kv_layers = config.num_kv_layers();
  const MoeConfig& moe = config.moe;
  const double experts = 3.0 * hidden * moe.intermediate_size * moe.num_experts * moe.num_sparse_layers();
  PlanModel model;
  model.expert_share = moe.num_experts == 0 ? 0 : static_cast<double>(moe.experts_per_token) / moe.num_experts;
  model.expert_bytes = experts * weight_element_bytes;
  model.step_parameters =
      attention * kv_layers + linear * (config.num_layers - kv_layers) + config.active_mlp_weights() + head;
  model.step_weight_bytes = (model.step_parameters - experts * model.expert_share) * weight_element_bytes;
  model.weight_bytes =
      model.step_weight_bytes + model.expert_bytes + (config.tie_word_embeddings ? 0 : head * weight_element_bytes);
  const double row_elements = static_cast<double>(config.kv_layout(Dtype::kBf16).row.elements(config.head_dim));
  model.kv_token_bytes = row_elements * config.num_kv_heads * kv_layers * kv_element_bytes;
  const bool indexes = config.latent && config.latent->indexer.num_heads > 0;
  model.key_share = (indexes ? config.latent->indexer.head_dim : config.head_dim) / row_elements;
  model.kv_element_bytes = kv_element_bytes;
  model.attention_flops = 4.0 * kv_layers * config.q_features();
  model.num_layers = config.num_layers;
  model.hidden_size = config.hidden_size;
  double windowed = 0, window_sum = 0;
  for (const uint32_t window : config.windows) {
    windowed += window > 0;
    window_sum += window;
  }
  if (windowed > 0) {
    model.windowed_share = windowed / config.num_layers;
    model.window_tokens = window_sum / windowed;
  }
  return model;
}

double StepWeightBytes(const PlanModel& model, double batch) {
  return model.step_weight_bytes + model.expert_bytes * (1 - std::pow(1 - model.expert_share, batch));
}

double AttendedTokens(const PlanModel& model, double attended_tokens, double context_tokens) {
  return attended_tokens * (1 - model.windowed_share) +
         std::min(model.window_tokens, context_tokens) * model.windowed_share;
}

double StepSeconds(const PlanModel& model, const DeviceRates& rates, double batch, double attended_tokens,
                   double scored_bytes_per_sequence) {
  const double bytes =
      StepWeightBytes(model, batch) + batch * (attended_tokens * model.kv_token_bytes + scored_bytes_per_sequence);
  const double flops = batch * (2 * model.step_parameters + model.attention_flops * attended_tokens);
  return std::max(bytes / rates.memory_bytes_per_s, flops / rates.flops_per_s);
}

double ScoredBytes(const PlanModel& model, const PlanScorer& scorer, const PlanWorkload& load) {
  const double key_bytes = (1 - model.windowed_share) * model.kv_token_bytes * model.key_share *
                           scorer.key_element_bytes / model.kv_element_bytes;
  const double context_keys = load.context_tokens * key_bytes;  // of all layers that select
  const double pages = context_keys * 2 / scorer.page_tokens;
  switch (scorer.kind) {
    case PlanScorer::Kind::kNone:
      return 0;
    case PlanScorer::Kind::kAllKeys:
      return context_keys;
    case PlanScorer::Kind::kPages:
      return pages;
    case PlanScorer::Kind::kTwoStage: {
      const double candidates =
          std::max<double>(scorer.candidate_factor * load.budget_tokens, scorer.min_candidate_tokens);
      const bool scores_all = load.context_tokens < scorer.score_all_below_tokens || load.context_tokens <= candidates;
      if (scores_all) return context_keys;
      // Above so many rows bounds of groups of pages are read, and of the pages of those that stay.
      const double of_groups = std::max<double>(scorer.group_candidate_tokens, candidates);
      const bool by_groups = scorer.group_candidate_tokens > 0 && load.context_tokens > of_groups;
      const double bounds = by_groups ? pages / kGroupPages + of_groups * key_bytes * 2 / scorer.page_tokens : pages;
      return bounds + candidates * key_bytes;
    }
  }
  return 0;
}

double ScoringSeconds(const PlanModel& model, const DeviceRates& rates, const PlanScorer& scorer,
                      const PlanWorkload& load) {
  return ScoredBytes(model, scorer, load) / rates.memory_bytes_per_s;
}

double TransferBytes(const PlanModel& model, const PlanWorkload& load) {
  return std::min(load.budget_tokens, load.context_tokens) * (1 - model.windowed_share) * model.kv_token_bytes *
         (1 - load.overlap);
}

}  // namespace winnow
