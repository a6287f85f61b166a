#include "cache_rank/projection_batch.h"

#include <algorithm>

namespace winnow {

int ProjectionBatch::Run(PeerLink& link) {
  if (projection_ == nullptr || link.to_score.empty()) return 0;
  const uint16_t layer_index = link.to_score.front().layer;
  rows_.clear();
  for (size_t i = 0; i < link.to_score.size() && rows_.size() < QueryProjection::kMaxRows; ++i) {
    const SelectionTask& task = link.to_score.at(i);
    if (task.layer != layer_index) break;
    CachedSequence* sequence = store_->FindAttached(task.sequence_id, task.attach_epoch, link.id);
    if (sequence == nullptr) continue;
    LayerSelection& layer = sequence->layers[layer_index];
    if (!layer.needs_projection()) continue;
    // A sequence may be queued twice for one layer; the residual is that of its newest position.
    layer.target_position = layer.hidden_position;
    rows_.push_back({&layer, layer.hidden_position});
  }
  if (rows_.empty()) return 0;

  const int num_rows = static_cast<int>(rows_.size());
  const size_t hidden_floats = static_cast<size_t>(projection_->hidden_size());
  const size_t query_floats = static_cast<size_t>(projection_->query_features());
  float* hidden = hidden_.Reserve(rows_.size() * hidden_floats);
  float* queries = queries_.Reserve(rows_.size() * query_floats);
  for (size_t i = 0; i < rows_.size(); ++i) {
    std::copy_n(rows_[i].layer->hidden.data(), hidden_floats, hidden + i * hidden_floats);
  }
  projection_->Project(*executor_, layer_index, hidden, num_rows, queries);
  for (size_t i = 0; i < rows_.size(); ++i) {
    kernels_->rotate({.q_pre_rope = queries + i * query_floats,
                      .num_rows = 1,
                      .num_heads = projection_->query_features() / head_dim_,
                      .head_dim = head_dim_,
                      .positions = &rows_[i].position,
                      .rope_inv_freq = rope_.inv_freq.data(),
                      .rope_attention_factor = rope_.attention_factor,
                      .q = rows_[i].layer->target.data()});
  }
  return num_rows;
}

}  // namespace winnow
