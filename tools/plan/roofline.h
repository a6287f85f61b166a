#pragma once
#include <cstdint>

#include "common/model/model_config.h"
#include "common/selection/selection_spec.h"
#include "tools/plan/device_rates.h"

namespace winnow {

// What a planned model costs. All bytes are of one device that holds the whole model.
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
  int num_layers = 0;
  double hidden_size = 0;
  // Layers of a sliding window attend to so many tokens in the mean, and select none.
  double windowed_share = 0;  // of the layers
  double window_tokens = 0;
};
// Bytes per element: 2 for bf16, 1 for fp8.
PlanModel PlanModelOf(const ModelConfig& config, double weight_element_bytes, double kv_element_bytes);

// How the rows are found, and the bytes that finding them reads of one sequence's keys.
struct PlanScorer {
  enum class Kind : uint8_t { kNone, kAllKeys, kPages, kTwoStage };
  Kind kind = Kind::kTwoStage;
  double key_element_bytes = 1;  // of the keys that are scored: 2 bf16, 1 fp8, 0.53125 int4 with its scales
  int page_tokens = 16;          // a page has two vectors (max and min)
  // Two-stage, as the fields of a selection: pages of so many budgets go on to exact scores, and at least so many
  // tokens; every key is scored of shorter contexts.
  int candidate_factor = 4;
  int min_candidate_tokens = 8192;
  int score_all_below_tokens = 30720;
  int group_candidate_tokens = 0;
};

// What a specification comes to; without a copy of the keys their elements are those of the rows.
PlanScorer ScorerOf(const SelectionSpec& spec, double kv_element_bytes);

struct PlanWorkload {
  double context_tokens = 32768;
  double budget_tokens = 2048;  // attended per position, all in all
  double overlap = 0.75;        // share of a selection that is resident already
};

// Weights that a step of `batch` sequences reads; experts as many as differ on average when each token's are drawn
// independently.
double StepWeightBytes(const PlanModel& model, double batch);
// Mean over the layers, where those without a window attend to `attended_tokens`.
double AttendedTokens(const PlanModel& model, double attended_tokens, double context_tokens);
// Lower bound of a decode step: max(bytes / bandwidth, operations / rate).
double StepSeconds(const PlanModel& model, const DeviceRates& rates, double batch, double attended_tokens,
                   double scored_bytes_per_sequence = 0);
// Keys (or page bounds) read per sequence and position to select.
double ScoredBytes(const PlanModel& model, const PlanScorer& scorer, const PlanWorkload& load);
double ScoringSeconds(const PlanModel& model, const DeviceRates& rates, const PlanScorer& scorer,
                      const PlanWorkload& load);
// Rows that travel per sequence and position.
double TransferBytes(const PlanModel& model, const PlanWorkload& load);

}  // namespace winnow
