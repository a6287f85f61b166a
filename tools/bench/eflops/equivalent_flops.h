#pragma once
#include <cstdint>

#include "common/model/model_config.h"

namespace winnow {

// Peaks of the machine that a step is charged for.
struct MachinePeaks {
  double flops = 0;  // FLOP/s of the matmul dtype
  double memory_bytes_per_s = 0;
  double link_bytes_per_s = 0;  // from the cache rank to the inference rank

  // FLOPs that the machine could do in the time of one byte: what a byte costs.
  double intensity() const { return flops / memory_bytes_per_s; }
};

// What a decode step attends to and how that is found. Lengths in tokens.
struct StepShape {
  uint32_t batch = 1;
  uint32_t context = 0;      // C
  uint32_t selected = 2048;  // T: rows attended per list, capped at the context
  uint32_t page = 16;        // P: tokens that one scored vector stands for; 1 scores every key
  double resident = 0;       // share of a selection that need not travel
  double element_bytes = 2;  // of weights, keys and values
  // KV, and what is scored, is read once per kv head and not once per query head, as a kernel for grouped queries does.
  // The published model charges it per query head.
  bool shared_by_group = false;
};

// One part of a step: arithmetic and traffic.
struct StepCost {
  double flops = 0;
  double bytes = 0;

  // C_comp + I C_mem.
  double equivalent(const MachinePeaks& peaks) const { return flops + peaks.intensity() * bytes; }
  StepCost operator+(const StepCost& other) const { return {flops + other.flops, bytes + other.bytes}; }
};

// The equivalent-FLOPs model of Efficient Sparse Decoding with Disaggregation and Asynchronism (after Kinetics,
// arXiv:2506.05333), over all layers and the batch, without embedding and lm_head:
//   weights     2 B w FLOPs, w elements read once        w: weights of all layers
//   attention   4 B l q h n FLOPs, 2 B l q h n elements  n: rows attended, C or T
//   filter      2 B l q h C / P FLOPs, B l q h C / P elements
// with l layers, q query heads of dimension h. A dense step is weights and attention to C; a step that selects for
// itself is weights, filter and attention to T; a disaggregated one leaves the filter to the cache rank.
StepCost WeightCost(const ModelConfig& model, const StepShape& shape);
StepCost AttentionCost(const ModelConfig& model, const StepShape& shape, uint32_t rows);
StepCost FilterCost(const ModelConfig& model, const StepShape& shape);

StepCost DenseStep(const ModelConfig& model, const StepShape& shape);
StepCost SelectingStep(const ModelConfig& model, const StepShape& shape);
StepCost DisaggregatedStep(const ModelConfig& model, const StepShape& shape);

// What the published model leaves out: bytes of the rows that travel to a disaggregated step, one list per kv head.
double LinkBytes(const ModelConfig& model, const StepShape& shape);

// Elements of all layers' matrices, embedding and lm_head not counted.
double LayerWeightElements(const ModelConfig& model);

// Seconds when arithmetic and traffic do not overlap, as the sum of the model implies.
double StepSeconds(const StepCost& cost, const MachinePeaks& peaks);

}  // namespace winnow
