#pragma once
#include <cstddef>
#include <cstdint>

#include "cache_rank/index/index_layout.h"
#include "cache_rank/select/predictor/from_past.h"
#include "cache_rank/select/predictor/query_ring.h"
#include "common/base/kv_layout.h"
#include "common/selection/selection_spec.h"

namespace winnow {

// What the selection of one (position, layer, kv head) depends on. Sel is a pure function of these inputs.
struct HeadQuestion {
  const SelectionSpec* spec = nullptr;
  uint32_t position = 0;       // Sel(position) is asked for
  uint32_t budget_tokens = 0;  // most rows of a list: the head's budget with what the guard let it grow
  HeadIndex index;             // of at least `position` rows; one more when the position's own mass is measured
  int first_query_head = 0;
  const float* target = nullptr;    // [group, head_dim] query of `position`, rotated; null: predicted from `ring`
  const QueryRing* ring = nullptr;  // of the layer; holds the query of position - 1, for predictors from the past

  // Captured mass of `measured_position`, with its real rotated queries [group, head_dim]; null: not measured. Either
  // position - 1, whose selection the lists then hold on entry, or `position` itself (measured == target), measured
  // with the new selection.
  const float* measured = nullptr;
  uint32_t measured_position = 0;
  bool measures_exactly = false;  // from every key, where the scorer reads fewer and would give a bound

  uint32_t prompt_tokens = kNoPrompt;                // of the sequence: where its anchors are (attended_set.h)
  static constexpr uint32_t kNoPrompt = UINT32_MAX;  // every position is its own anchor
};

struct SelectionModel {
  int group_size = 0;
  int head_dim = 0;
  Dtype dtype = Dtype::kBf16;
  RowLayout row = {};
  int num_index_heads = 0;
  float attention_scale = 0;
  float attention_softcap = 0;  // 0: none
  RopeShape rope;

  ScoreForm score_form() const { return {attention_scale, attention_softcap}; }
};

// Lists that a head has: one, or one for each query head of its group.
inline size_t ListsPerHead(const SelectionSpec& spec, const SelectionModel& model) {
  return ListsPerKvHead(spec, model.group_size);
}

}  // namespace winnow
