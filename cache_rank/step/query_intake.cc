#include "cache_rank/step/query_intake.h"

#include <algorithm>

#include "transport/wire/wire.h"

namespace winnow {

bool QueryIntake::NeedsQuery(const CachedSequence& sequence, int layer) {
  return (sequence.planned.selects && sequence.SelectsWithOwnQuery(layer)) ||
         (sequence.planned.sparse && WaitsForVerification(sequence.spec));
}

void QueryIntake::TakeQuery(InferenceLink& link, CachedSequence& sequence, int layer, uint32_t position,
                            const float* query) {
  if (IsDense(sequence.spec) || sequence.spec.predictor == Predictor::kFixed) return;
  LayerSelection& selection = sequence.layers[layer];
  const bool own = sequence.SelectsWithOwnQuery(layer);
  const bool prefetches = sequence.spec.prefetch == Prefetch::kTemporal;
  if (own && sequence.planned.selects) {
    Rotate(sequence, query, position, selection.target.data());
    selection.target_position = position;
    selector_->OnTarget(link, sequence, layer, position);
  }
  // Between anchors the real query verifies a selection that it did not make.
  const bool verifies =
      sequence.planned.sparse && WaitsForVerification(sequence.spec) && !(own && sequence.planned.selects);
  if (own && !verifies && !prefetches) return;
  const QueryRing::Slot slot = selection.queries.Push(position);
  std::copy_n(query, selection.target.size(), slot.pre);
  Rotate(sequence, query, position, slot.rotated);
  if (verifies) selector_->OnVerifyingQuery(link, sequence, layer, position);
  if (prefetches && sequence.planned.sparse) prefetcher_->OnQuery(link, sequence, layer, position);
}

void QueryIntake::TakeIndexQuery(InferenceLink& link, CachedSequence& sequence, int layer, uint32_t position,
                                 const float* query) {
  if (!sequence.planned.selects) return;
  LayerSelection& selection = sequence.layers[layer];
  std::copy_n(query, selection.target.size(), selection.target.data());
  selection.target_position = position;
  selector_->OnTarget(link, sequence, layer, position);
}

void QueryIntake::TakeTarget(InferenceLink& link, const wire::FrameHeader& header, CachedSequence& sequence,
                             uint32_t position, const float* prediction, const float* hidden) {
  const SelectionSpec& spec = sequence.spec;
  if (spec.predictor != Predictor::kDepth || !sequence.planned.selects) return;
  const int target = header.layer_first + static_cast<int>(spec.lookahead);
  if (!sequence.shard.HasLayer(target)) return;
  const int layer = target - sequence.shard.first_layer;
  LayerSelection& selection = sequence.layers[layer];
  const bool is_for_it = header.prediction_layer == target;
  const bool projects = spec.projection == Projection::kCacheRank;
  if (projects && hidden != nullptr && is_for_it) {
    selection.hidden.assign(hidden, hidden + hidden_size_);
    selection.hidden_position = position;
    selector_->OnTarget(link, sequence, layer, position);
  } else if (!projects && prediction != nullptr && is_for_it) {
    Rotate(sequence, prediction, position, selection.target.data());
    selection.target_position = position;
    selector_->OnTarget(link, sequence, layer, position);
  } else if ((header.flags & wire::kSectionAppend) != 0 && !selection.HasTarget(position)) {
    selector_->Refuse(link, header.plan, sequence, layer);
  }
}

void QueryIntake::TakePromptQueries(InferenceLink& link, CachedSequence& sequence, int layer, uint32_t first,
                                    uint32_t count, const float* queries) {
  const size_t query_floats = static_cast<size_t>(sequence.layout.num_query_heads) * head_dim_;
  QueryRing& ring = sequence.layers[layer].queries;
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t position = first + i;
    const QueryRing::Slot slot = ring.Push(position);
    std::copy_n(queries + i * query_floats, query_floats, slot.pre);
    Rotate(sequence, slot.pre, position, slot.rotated);
  }
  if (ring.end() == sequence.prompt_tokens && ring.end() > 0) {
    selector_->OnQuery(link, sequence, layer, ring.end() - 1);
  }
}

void QueryIntake::Rotate(const CachedSequence& sequence, const float* query, uint32_t position, float* rotated) const {
  kernels_->rotate({.q_pre_rope = query,
                    .num_rows = 1,
                    .num_heads = sequence.layout.num_query_heads,
                    .head_dim = head_dim_,
                    .positions = &position,
                    .rope_inv_freq = rope_.inv_freq.data(),
                    .rope_attention_factor = rope_.attention_factor,
                    .q = rotated});
}

}  // namespace winnow
