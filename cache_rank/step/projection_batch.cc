#include "cache_rank/step/projection_batch.h"

#include <algorithm>

namespace winnow {

bool ProjectionBatch::Run(InferenceLink& link) {
  if (projection_ == nullptr || link.to_score.empty()) return false;
  const uint16_t layer_index = link.to_score.front().layer;
  int layer_of_model = 0;
  rows_.clear();
  uint64_t plan = 0;
  for (size_t i = 0; i < link.to_score.size() && rows_.size() < QueryProjection::kMaxRows; ++i) {
    const SelectionTask& task = link.to_score.at(i);
    if (task.layer != layer_index) break;
    CachedSequence* sequence = store_->FindAttached(task.sequence_id, task.attach_epoch, link.id);
    if (sequence == nullptr) continue;
    LayerSelection& layer = sequence->layers[layer_index];
    if (!layer.needs_projection()) continue;
    if (rows_.empty()) layer_of_model = sequence->layer_of_model(layer_index);
    if (sequence->layer_of_model(layer_index) != layer_of_model) break;
    // A sequence may be queued twice for one layer; the residual is that of its newest position.
    layer.target_position = layer.hidden_position;
    rows_.push_back({sequence, &layer, layer.hidden_position});
    plan = sequence->planned.plan;
  }
  if (rows_.empty()) return false;
  const TimelineSpan span(metrics_->timeline, Span::kProject, layer_index, plan, static_cast<uint32_t>(rows_.size()));

  const int num_rows = static_cast<int>(rows_.size());
  const size_t hidden_floats = static_cast<size_t>(projection_->hidden_size());
  const size_t query_floats = static_cast<size_t>(projection_->query_features());
  float* hidden = hidden_.Reserve(rows_.size() * hidden_floats);
  float* queries = queries_.Reserve(rows_.size() * query_floats);
  for (size_t i = 0; i < rows_.size(); ++i) {
    std::copy_n(rows_[i].layer->hidden.data(), hidden_floats, hidden + i * hidden_floats);
  }
  projection_->Project(*executor_, layer_of_model, hidden, num_rows, queries);
  for (size_t i = 0; i < rows_.size(); ++i) {
    // Of all query heads those of the shard.
    const KvLayout& layout = rows_[i].sequence->layout;
    const int first_head = rows_[i].sequence->shard.first_kv_head * layout.group_size();
    kernels_->rotate({.q_pre_rope = queries + i * query_floats + static_cast<size_t>(first_head) * head_dim_,
                      .num_rows = 1,
                      .num_heads = layout.num_query_heads,
                      .head_dim = head_dim_,
                      .positions = &rows_[i].position,
                      .rope_inv_freq = rope_.inv_freq.data(),
                      .rope_attention_factor = rope_.attention_factor,
                      .q = rows_[i].layer->target.data()});
  }
  metrics_->projections.Add(rows_.size());
  return true;
}

}  // namespace winnow
