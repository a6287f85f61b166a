#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "cache_rank/index_layout.h"
#include "cache_rank/policy/mass.h"
#include "cache_rank/predictor/from_past.h"
#include "cache_rank/predictor/query_ring.h"
#include "cache_rank/scorer/captured_mass.h"
#include "cache_rank/scorer/joint_scoring.h"
#include "cache_rank/scorer/row_groups.h"
#include "cache_rank/scorer/token_scorer.h"
#include "cache_rank/scratch_buffer.h"
#include "common/base/kv_layout.h"
#include "common/selection/selection_spec.h"
#include "kernels/kernel_table.h"

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
  float attention_scale = 0;
  RopeShape rope;
};

// One per worker thread.
struct SelectScratch {
  ScratchBuffer<float> queries, page_queries, scores, tail, importance, units;
  SoftmaxScratch softmax, page_softmax, bound_softmax, measured;
  ScratchBuffer<uint32_t> top_k;
  std::vector<uint32_t> chosen, merged;
  std::vector<std::vector<uint32_t>> lists;  // SelectUnion: of each query head
  std::vector<QueryHeadMask> marks;          // SelectUnion: by row
  RowGroups groups, candidates;
  std::vector<double> held, unread;
  PageMassScratch mass;
  ScoredMassScratch scored_mass;
  // Of keys and pseudo-keys that kernels read; they only grow. Measured are those that captured mass alone wants: a
  // rank that measures nothing would not read them.
  uint64_t scored_key_bytes = 0, measured_key_bytes = 0;
  uint64_t page_key_bytes = 0;    // of both, pseudo-keys of pages
  uint64_t shared_key_bytes = 0;  // that were not read again, because several sequences have them

  // SelectHeads.
  JointScratch joint;
  std::vector<KeyPass> passes;
  std::vector<Softmaxes> pass_softmaxes;
  std::vector<Scores> pass_scores;
  std::vector<std::vector<std::vector<uint32_t>>> task_lists;  // SelectUnions: of each query head, by task
};

// Lists that a head has: one, or one for each query head of its group.
inline size_t ListsPerHead(const SelectionSpec& spec, const SelectionModel& model) {
  return ListsPerKvHead(spec, model.group_size);
}

// Replaces lists [ListsPerHead] by Sel(position), each ascending and within [sinks, start of the recent window);
// returns the captured mass. Steady state allocates nothing.
CapturedMassFigure SelectHead(const KernelTable& kernels, const SelectionModel& model, const HeadQuestion& question,
                              SelectScratch& scratch, std::span<std::vector<uint32_t>> lists);

// One of several questions that are answered together.
struct HeadTask {
  const HeadQuestion* question = nullptr;
  std::span<std::vector<uint32_t>> lists;
  CapturedMassFigure mass;  // the answer's
};

// SelectHead for sequences at the same (layer, kv head), with equal specifications, and the same answers. Of what is
// scored for all lists of a head, blocks that sequences share are read once.
void SelectHeads(const KernelTable& kernels, const SelectionModel& model, std::span<HeadTask> tasks,
                 SelectScratch& scratch);

}  // namespace winnow
