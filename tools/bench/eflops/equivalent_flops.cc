#include "tools/bench/eflops/equivalent_flops.h"

#include <algorithm>

namespace winnow {
namespace {

// Query features of all layers and the batch: B l q h.
double QueryFeatures(const ModelConfig& model, const StepShape& shape) {
  return static_cast<double>(shape.batch) * model.num_layers * model.q_features();
}

// How often what belongs to a kv head is read: once per query head, or once.
double Reads(const ModelConfig& model, const StepShape& shape) {
  return shape.shared_by_group ? 1.0 / model.group_size() : 1.0;
}

uint32_t Selected(const StepShape& shape) {
  return std::min(shape.selected, shape.context);
}

}  // namespace

double LayerWeightElements(const ModelConfig& model) {
  const double hidden = model.hidden_size;
  const double attention = hidden * model.qkv_features() + static_cast<double>(model.q_features()) * hidden;
  return model.num_layers * attention + model.active_mlp_weights();
}

StepCost WeightCost(const ModelConfig& model, const StepShape& shape) {
  const double weights = LayerWeightElements(model);
  return {2.0 * shape.batch * weights, shape.element_bytes * weights};
}

StepCost AttentionCost(const ModelConfig& model, const StepShape& shape, uint32_t rows) {
  const double work = QueryFeatures(model, shape) * rows;
  return {4 * work, 2 * shape.element_bytes * work * Reads(model, shape)};
}

StepCost FilterCost(const ModelConfig& model, const StepShape& shape) {
  const double work = QueryFeatures(model, shape) * shape.context / shape.page;
  return {2 * work, shape.element_bytes * work * Reads(model, shape)};
}

StepCost DenseStep(const ModelConfig& model, const StepShape& shape) {
  return WeightCost(model, shape) + AttentionCost(model, shape, shape.context);
}

StepCost SelectingStep(const ModelConfig& model, const StepShape& shape) {
  return DisaggregatedStep(model, shape) + FilterCost(model, shape);
}

StepCost DisaggregatedStep(const ModelConfig& model, const StepShape& shape) {
  return WeightCost(model, shape) + AttentionCost(model, shape, Selected(shape));
}

double LinkBytes(const ModelConfig& model, const StepShape& shape) {
  const double row_features = 2.0 * model.num_layers * model.kv_features();
  return shape.batch * row_features * shape.element_bytes * Selected(shape) * (1 - shape.resident);
}

double StepSeconds(const StepCost& cost, const MachinePeaks& peaks) {
  return cost.flops / peaks.flops + cost.bytes / peaks.memory_bytes_per_s;
}

}  // namespace winnow
