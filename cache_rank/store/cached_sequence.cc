#include "cache_rank/store/cached_sequence.h"

#include <algorithm>

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

CachedSequence::CachedSequence(uint64_t id, const SelectionSpec& spec, SequenceKv kv, const KvLayout& layout,
                               const KvShard& shard, uint32_t prompt_tokens)
    : id(id),
      shard(shard),
      layout(layout),
      spec(spec),
      prefetch_spec(PrefetchSpec(spec)),
      kv(std::move(kv)),
      prompt_tokens(prompt_tokens),
      attach_position(prompt_tokens) {
  const size_t query_floats = SelectsFromAll(spec) ? layout.index_query_floats()
                                                   : static_cast<size_t>(layout.num_query_heads) * layout.head_dim;
  layers.reserve(layout.num_layers);
  for (int i = 0; i < layout.num_layers; ++i) {
    layers.emplace_back(RingQueries(spec), query_floats);
    for (int head = 0; head < layout.num_kv_heads; ++head) {
      const uint32_t budget = HeadBudget(spec, layout.list(i, head));
      const uint32_t ceiling = GrowsBudgets(spec) ? spec.budget_growth : 1;
      layers.back().heads.emplace_back(BudgetGrowth(budget, ceiling, spec.reuse_interval));
    }
    layers.back().Restart(0, 0, this->kv.max_positions());
  }
  for (size_t list = 0; list < layout.num_lists(); ++list) {
    pool_slots.push_back(PoolSlots(spec, list, this->kv.max_positions(), layout.group_size()));
    total_pool_slots += pool_slots.back();
  }
}

uint64_t CachedSequence::ScoredKeyBytes() const {
  uint64_t bytes = 0;
  for (const LayerSelection& layer : layers) {
    for (const HeadSelection& head : layer.heads) bytes += head.scored_key_bytes;
  }
  return bytes;
}

uint64_t CachedSequence::WorkingSetRows() const {
  uint64_t blocks = 0;
  for (const LayerSelection& layer : layers) {
    for (const HeadSelection& head : layer.heads) blocks += head.working_set.blocks();
  }
  return blocks * kBlockTokens;
}

uint32_t CachedSequence::RestartPosition(uint32_t max_restart) const {
  uint32_t position = std::min(kv.watermark(), max_restart);
  if (!IsDense(spec) && PredictsFromPast(spec.predictor)) {
    for (const LayerSelection& layer : layers) position = std::min(position, layer.queries.end());
  }
  if (GrowsBudgets(spec)) {
    // Later selections depend on the verification of every earlier position.
    for (size_t i = 0; i < layers.size(); ++i) {
      const auto lacks_verification = [&](uint32_t p) {
        return p >= layers[i].verified_end && p >= prompt_tokens && LayerIsSparse(static_cast<int>(i), p);
      };
      while (position > 0 && lacks_verification(position - 1)) --position;
    }
  }
  // A prompt's positions are prefill's: they attend to every row, and a decode step attends to selected ones.
  if (position < prompt_tokens) return 0;
  // Without its anchor's selection a position cannot be decoded: the anchor can, as Sel is a function of what is kept.
  const uint32_t anchor = Anchor(position);
  for (size_t layer = 0; layer < layers.size() && spec.predictor != Predictor::kFixed; ++layer) {
    if (LayerIsSparse(static_cast<int>(layer), position) && !layers[layer].HoldsSelection(anchor)) position = anchor;
  }
  if (!HoldsPastQueries(position)) return 0;
  // Streaming heads refill the ring from the newest rows only.
  const uint32_t ring = wire::RingTokens(spec.recent_tokens, kBlockTokens, kSlotPageTokens);
  const uint32_t refilled = std::max(position > ring ? position - ring : 0, spec.sink_tokens);
  return std::max(kv.FirstKeptBelow(position), first_copied) > refilled ? 0 : position;
}

uint32_t CachedSequence::PromptRestart(uint32_t max_restart) const {
  const uint32_t position =
      std::min({kv.watermark(), max_restart, PrefixLimit(spec, prompt_tokens)}) / kBlockTokens * kBlockTokens;
  // Prefill attends to every row.
  return std::max(kv.FirstKeptBelow(position), first_copied) > 0 ? 0 : position;
}

uint32_t CachedSequence::StateRestart(uint32_t max_restart, uint64_t state_bytes, bool allows_prompt) {
  if (states.state_bytes() != state_bytes) return 0;
  while (const StateSnapshot* const state = states.FindBelow(max_restart)) {
    const uint32_t position = state->position();
    const bool fits = RestartPosition(position) == position || (allows_prompt && PromptRestart(position) == position);
    if (!state->IsIntact(states.block_bytes())) {
      states.Forget(*state);
    } else if (fits) {
      return position;
    } else {
      max_restart = position - 1;
    }
  }
  return 0;
}

bool CachedSequence::HoldsPastQueries(uint32_t position) const {
  const uint32_t needed = std::min(PastQueries(spec), position);
  return needed == 0 || std::all_of(layers.begin(), layers.end(), [&](const LayerSelection& layer) {
           return layer.queries.first() <= position - needed && layer.queries.end() >= position;
         });
}

absl::Status CachedSequence::Restart(uint32_t position) {
  WINNOW_RETURN_IF_ERROR(kv.Truncate(position));
  journal.Truncate(position);
  states.Truncate(position);
  rewound_to = std::min(rewound_to, position);
  // What is restarted within its prompt decodes from the prompt's end on, and nothing has been selected for that.
  const bool computes_prompt = position < prompt_tokens;
  attach_position = computes_prompt || position == 0 ? prompt_tokens : position;
  for (LayerSelection& layer : layers) {
    layer.queries.Truncate(position);
    layer.verified_end = std::min(layer.verified_end, position);
    for (HeadSelection& head : layer.heads) head.growth.Truncate(position);
    layer.Restart(computes_prompt ? 0 : position, computes_prompt ? 0 : Anchor(position), kv.max_positions());
  }
  planned = {};
  return absl::OkStatus();
}

uint32_t PrefixLimit(const SelectionSpec& spec, uint32_t prompt_tokens) {
  const uint32_t computed = std::max({spec.window + 1, spec.recent_tokens, 1u});
  return prompt_tokens > computed ? (prompt_tokens - computed) / kBlockTokens * kBlockTokens : 0;
}

}  // namespace winnow
