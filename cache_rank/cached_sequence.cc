#include "cache_rank/cached_sequence.h"

#include <algorithm>

#include "cache_rank/predictor/from_past.h"

namespace winnow {

void SequenceJournal::Record(uint32_t position, uint32_t token_id) {
  Truncate(position);
  if (token_ids.empty() || position != first_position + token_ids.size()) {
    token_ids.clear();
    first_position = position;
  }
  token_ids.push_back(token_id);
}

void SequenceJournal::Truncate(uint32_t position) {
  const uint32_t kept = position > first_position ? position - first_position : 0;
  if (kept < token_ids.size()) token_ids.resize(kept);
}

CachedSequence::CachedSequence(uint64_t id, const SelectionSpec& spec, SequenceKv kv, const KvLayout& layout)
    : id(id), spec(spec), kv(std::move(kv)) {
  const size_t query_floats = static_cast<size_t>(layout.num_query_heads) * layout.head_dim;
  layers.reserve(layout.num_layers);
  const BudgetGrowth growth(spec.budget_tokens, GrowsBudgets(spec) ? spec.budget_growth : 1);
  for (int i = 0; i < layout.num_layers; ++i) {
    layers.emplace_back(RingQueries(spec), query_floats, layout.num_kv_heads, growth);
    layers.back().ResetExceptQueries(this->kv.max_positions());
  }
}

uint64_t CachedSequence::ScoredKeyBytes() const {
  uint64_t bytes = 0;
  for (const LayerSelection& layer : layers) {
    for (const HeadSelection& head : layer.heads) bytes += head.scored_key_bytes;
  }
  return bytes;
}

uint32_t CachedSequence::RestartPosition(uint32_t max_restart) const {
  uint32_t position = std::min(kv.watermark(), max_restart);
  const bool selects = spec.predictor != Predictor::kDense && spec.budget_tokens != kUnlimitedBudget;
  if (selects && PredictsFromPast(spec.predictor)) {
    for (const LayerSelection& layer : layers) position = std::min(position, layer.queries.end());
  }
  if (GrowsBudgets(spec)) {
    // Later selections depend on the verdict of every earlier position.
    const auto lacks_verdict = [&](uint32_t p, const LayerSelection& layer) {
      return p >= layer.judged_end && p >= prompt_tokens && !AttendsEverything(p, spec, kBlockTokens);
    };
    for (const LayerSelection& layer : layers) {
      while (position > 0 && lacks_verdict(position - 1, layer)) --position;
    }
  }
  return position < std::min(prompt_tokens, max_restart) ? 0 : position;
}

absl::Status CachedSequence::Restart(uint32_t position) {
  WINNOW_RETURN_IF_ERROR(kv.Truncate(position));
  journal.Truncate(position);
  for (LayerSelection& layer : layers) {
    layer.queries.Truncate(position);
    layer.judged_end = std::min(layer.judged_end, position);
    for (HeadSelection& head : layer.heads) head.growth.Truncate(position);
    layer.ResetExceptQueries(kv.max_positions());
  }
  seat = {};
  pool_slots = 0;
  identity_rows = 0;
  return absl::OkStatus();
}

}  // namespace winnow
