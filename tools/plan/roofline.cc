#include "tools/plan/roofline.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace winnow {
namespace {

// Of a GPU's memory, the rest being contexts, activations and fragments.
constexpr double kUsableBesideWeights = 0.92;
constexpr double kUsableForCache = 0.95;

std::string Gigabytes(double bytes) {
  return bytes < 1e8 ? absl::StrFormat("%.2f MB", bytes / 1e6) : absl::StrFormat("%.1f GB", bytes / 1e9);
}

// What is stored for a scorer beside the rows, as a share of them.
double IndexShare(const PlanModel& model, const PlanScorer& scorer) {
  // Two vectors a page against page_tokens keys, which are that share of the rows.
  const double bounds = scorer.kind == PlanScorer::Kind::kAllKeys ? 0 : 2 * model.key_share / scorer.page_tokens;
  const bool has_copy = scorer.kind != PlanScorer::Kind::kPages && scorer.key_element_bytes < model.kv_element_bytes;
  return bounds + (has_copy ? model.key_share * scorer.key_element_bytes / model.kv_element_bytes : 0);
}

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

PlanModel PlanModelOf(const ModelConfig& config, double weight_element_bytes, double kv_element_bytes) {
  const double hidden = config.hidden_size;
  const double attention =
      hidden * config.qkv_features() + static_cast<double>(config.o_features()) * hidden + LatentProjections(config);
  const double head = hidden * config.vocab_size;
  const MoeConfig& moe = config.moe;
  const double experts = 3.0 * hidden * moe.intermediate_size * moe.num_experts * moe.num_sparse_layers();
  PlanModel model;
  model.expert_share = moe.num_experts == 0 ? 0 : static_cast<double>(moe.experts_per_token) / moe.num_experts;
  model.expert_bytes = experts * weight_element_bytes;
  model.step_parameters = attention * config.num_layers + config.active_mlp_weights() + head;
  model.step_weight_bytes = (model.step_parameters - experts * model.expert_share) * weight_element_bytes;
  model.weight_bytes =
      model.step_weight_bytes + model.expert_bytes + (config.tie_word_embeddings ? 0 : head * weight_element_bytes);
  const double row_elements = static_cast<double>(config.kv_layout(Dtype::kBf16).row.elements(config.head_dim));
  model.kv_token_bytes = row_elements * config.num_kv_heads * config.num_layers * kv_element_bytes;
  const bool indexes = config.latent && config.latent->indexer.num_heads > 0;
  model.key_share = (indexes ? config.latent->indexer.head_dim : config.head_dim) / row_elements;
  model.kv_element_bytes = kv_element_bytes;
  model.attention_flops = 4.0 * config.num_layers * config.q_features();
  return model;
}

double StepWeightBytes(const PlanModel& model, double batch) {
  return model.step_weight_bytes + model.expert_bytes * (1 - std::pow(1 - model.expert_share, batch));
}

double StepSeconds(const PlanModel& model, const GpuRates& rates, double batch, double attended_tokens,
                   double scored_bytes_per_sequence) {
  const double bytes =
      StepWeightBytes(model, batch) + batch * (attended_tokens * model.kv_token_bytes + scored_bytes_per_sequence);
  const double flops = batch * (2 * model.step_parameters + model.attention_flops * attended_tokens);
  return std::max(bytes / rates.hbm_bytes_per_s, flops / rates.flops_per_s);
}

double ScoredBytes(const PlanModel& model, const PlanScorer& scorer, const PlanWorkload& load) {
  const double key_bytes = model.kv_token_bytes * model.key_share * scorer.key_element_bytes / model.kv_element_bytes;
  const double context_keys = load.context_tokens * key_bytes;
  const double pages = context_keys * 2 / scorer.page_tokens;
  switch (scorer.kind) {
    case PlanScorer::Kind::kAllKeys:
      return context_keys;
    case PlanScorer::Kind::kPages:
      return pages;
    case PlanScorer::Kind::kTwoStage: {
      const double candidates =
          std::max<double>(scorer.candidate_factor * load.budget_tokens, scorer.min_candidate_tokens);
      const bool scores_all = load.context_tokens < scorer.score_all_below_tokens || load.context_tokens <= candidates;
      return scores_all ? context_keys : pages + candidates * key_bytes;
    }
  }
  return 0;
}

double ScoringSeconds(const PlanModel& model, const GpuRates& rates, const PlanScorer& scorer,
                      const PlanWorkload& load) {
  return ScoredBytes(model, scorer, load) / rates.hbm_bytes_per_s;
}

double TransferBytes(const PlanModel& model, const PlanWorkload& load) {
  return std::min(load.budget_tokens, load.context_tokens) * model.kv_token_bytes * (1 - load.overlap);
}

PlacementPlan Plan(const PlanModel& model, const GpuRates& rates, const PlanWorkload& load,
                   const PlannedPlacement& placement, double batch) {
  PlacementPlan plan;
  plan.placement = placement;
  const bool colocated = placement.cache_gpus == 0;
  const double beside_weights = kUsableBesideWeights * rates.hbm_bytes - model.weight_bytes;
  const double index = placement.dense ? 0 : IndexShare(model, placement.scorer);
  const double sequence_bytes = load.context_tokens * model.kv_token_bytes * (1 + index);
  plan.arithmetic =
      absl::StrFormat("beside the weights: %.2f x %s - %s = %s\n", kUsableBesideWeights, Gigabytes(rates.hbm_bytes),
                      Gigabytes(model.weight_bytes), Gigabytes(beside_weights));
  if (beside_weights <= 0) {
    plan.arithmetic += "the model does not fit one GPU: shard it\n";
    return plan;
  }
  const double room =
      colocated ? beside_weights * placement.inference_gpus : placement.cache_gpus * kUsableForCache * rates.hbm_bytes;
  const double held = room / sequence_bytes;
  plan.fits = static_cast<int64_t>(held);
  absl::StrAppend(
      &plan.arithmetic,
      absl::StrFormat("KV of a sequence: %.0f tokens x %.0f B%s = %s; %s hold %.1f\n", load.context_tokens,
                      model.kv_token_bytes, index > 0 ? absl::StrFormat(" and %.2f of that as index", index) : "",
                      Gigabytes(sequence_bytes), Gigabytes(room), held));
  const double one_holds = kUsableForCache * rates.hbm_bytes;
  if (!colocated && sequence_bytes > one_holds) {
    absl::StrAppend(&plan.arithmetic,
                    absl::StrFormat("a cache GPU holds %s of it: winnow up --cache-shards=%.0f, at least\n",
                                    Gigabytes(one_holds), std::ceil(sequence_bytes / one_holds)));
  }
  const double attended = placement.dense ? load.context_tokens : std::min(load.budget_tokens, load.context_tokens);
  if (!colocated) {
    const double working_sets = beside_weights * placement.inference_gpus / (attended * model.kv_token_bytes);
    if (working_sets < static_cast<double>(plan.fits)) {
      plan.fits = static_cast<int64_t>(working_sets);
      absl::StrAppend(&plan.arithmetic, absl::StrFormat("working sets limit it to %d\n", plan.fits));
    }
  }
  plan.batch = batch > 0 ? batch : static_cast<double>(plan.fits);
  if (plan.batch == 0) {
    plan.arithmetic += "not one sequence fits\n";
    return plan;
  }
  const double per_gpu = plan.batch / placement.inference_gpus;
  const double scored = placement.dense ? 0 : ScoredBytes(model, placement.scorer, load);
  plan.step_s = StepSeconds(model, rates, per_gpu, attended, colocated ? scored : 0);
  absl::StrAppend(
      &plan.arithmetic,
      absl::StrFormat("step: (%s weights + %.0f x %s attended%s) / %.2f TB/s = %.2f ms\n",
                      Gigabytes(StepWeightBytes(model, per_gpu)), per_gpu, Gigabytes(attended * model.kv_token_bytes),
                      colocated && scored > 0 ? " and " + Gigabytes(scored) + " scored" : "",
                      rates.hbm_bytes_per_s / 1e12, plan.step_s * 1e3));
  if (!colocated && !placement.dense) {
    const double scoring_s = ScoringSeconds(model, rates, placement.scorer, load);
    plan.cache_ratio = plan.batch * scoring_s / plan.step_s / placement.cache_gpus;
    plan.link_load = per_gpu * TransferBytes(model, load) / rates.link_bytes_per_s / plan.step_s;
    absl::StrAppend(
        &plan.arithmetic,
        absl::StrFormat(
            "selection: %.0f x %.3f ms / %d cache GPUs = %.2f of the step; rows: %.0f x %s = %.2f of the link\n",
            plan.batch, scoring_s * 1e3, placement.cache_gpus, plan.cache_ratio, per_gpu,
            Gigabytes(TransferBytes(model, load)), plan.link_load));
  }
  const double floor_s = plan.step_s * std::max({1.0, plan.cache_ratio, plan.link_load});
  plan.tokens_per_s_per_gpu = plan.batch / floor_s / (placement.inference_gpus + placement.cache_gpus);
  return plan;
}

}  // namespace winnow
