#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "common/model/model_config.h"

namespace winnow {

// Rates and memory of one GPU. The defaults are an H200's by its datasheet; 85 to 92 % of them is what runs reach.
struct GpuRates {
  double hbm_bytes_per_s = 4.8e12;
  double flops_per_s = 790e12;          // dense bf16, as measured
  double link_bytes_per_s = 450e9;      // NVLink, one direction
  double host_link_bytes_per_s = 55e9;  // PCIe
  double hbm_bytes = 139.0 * (1 << 30);
};

// What a planned model costs. All bytes are of one GPU that holds the whole model.
struct PlanModel {
  double weight_bytes = 0;       // resident: with embedding and lm_head
  double step_weight_bytes = 0;  // read by every decode step: without experts, and without the embedding, of which a
                                 // step reads a few rows
  double expert_bytes = 0;       // of all routed experts; a step reads those that its tokens are sent to
  double expert_share = 0;       // of the experts, that one token is sent to
  double step_parameters = 0;    // multiplied per token
  double kv_token_bytes = 0;     // the rows of one token in all layers
  double key_share = 0.5;        // of a row, what is scored: its key, or the index key of a model's own indexer
  double kv_element_bytes = 2;
  double attention_flops = 0;  // of one query position per attended token: 4 layers query_heads head_dim
};
// Bytes per element: 2 for bf16, 1 for fp8.
PlanModel PlanModelOf(const ModelConfig& config, double weight_element_bytes, double kv_element_bytes);

// How the rows are found, and the bytes that finding them reads of one sequence's keys.
struct PlanScorer {
  enum class Kind : uint8_t { kAllKeys, kPages, kTwoStage };
  Kind kind = Kind::kTwoStage;
  double key_element_bytes = 1;  // of the keys that are scored: 2 bf16, 1 fp8, 0.53125 int4 with its scales
  int page_tokens = 16;          // a page has two vectors (max and min)
  // Two-stage, as the fields of a selection: pages of so many budgets go on to exact scores, and at least so many
  // tokens; every key is scored of shorter contexts.
  int candidate_factor = 4;
  int min_candidate_tokens = 8192;
  int score_all_below_tokens = 30720;
};

struct PlanWorkload {
  double context_tokens = 32768;
  double budget_tokens = 2048;  // attended per position, all in all
  double overlap = 0.75;        // share of a selection that is resident already
};

// Weights that a step of `batch` sequences reads; experts as many as differ on average when each token's are drawn
// independently.
double StepWeightBytes(const PlanModel& model, double batch);
// Lower bound of a decode step: max(bytes / bandwidth, operations / rate).
double StepSeconds(const PlanModel& model, const GpuRates& rates, double batch, double attended_tokens,
                   double scored_bytes_per_sequence = 0);
// Keys (or page bounds) read per sequence and position to select.
double ScoredBytes(const PlanModel& model, const PlanScorer& scorer, const PlanWorkload& load);
double ScoringSeconds(const PlanModel& model, const GpuRates& rates, const PlanScorer& scorer,
                      const PlanWorkload& load);
// Rows that travel per sequence and position.
double TransferBytes(const PlanModel& model, const PlanWorkload& load);

// One way to place the system, on inference_gpus + cache_gpus (0: colocated).
struct PlannedPlacement {
  std::string name = {};
  int inference_gpus = 1;
  int cache_gpus = 0;
  bool dense = false;
  PlanScorer scorer = {};
};

struct PlacementPlan {
  PlannedPlacement placement;
  int64_t fits = 0;   // sequences whose KV fits
  double batch = 0;   // that is planned with: what was asked for, or what fits
  double step_s = 0;  // the decode step's floor
  double tokens_per_s_per_gpu = 0;
  double cache_ratio = 0;  // busy share of the cache GPUs while they hide behind the step: above 1 they hold it up
  double link_load = 0;    // busy share of the inference GPU's link
  std::string arithmetic;  // how these came about
};

// `batch` 0: as many sequences as fit. A model that does not fit gives fits 0 and says why in `arithmetic`.
PlacementPlan Plan(const PlanModel& model, const GpuRates& rates, const PlanWorkload& load,
                   const PlannedPlacement& placement, double batch);

}  // namespace winnow
