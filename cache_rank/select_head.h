#pragma once
#include <cstdint>
#include <vector>

#include "cache_rank/predictor/from_past.h"
#include "cache_rank/predictor/query_ring.h"
#include "cache_rank/scorer/token_scorer.h"
#include "cache_rank/scratch_buffer.h"
#include "common/selection/selection_spec.h"
#include "kernels/kernel_table.h"

namespace winnow {

// What the selection of one (position, layer, kv head) depends on: predictor, scorer and policy in a row. Sel is a pure
// function of these inputs.
struct HeadQuestion {
  const SelectionSpec* spec = nullptr;
  uint32_t position = 0;               // Sel(position) is asked for
  uint32_t budget_tokens = 0;          // most rows of Sel: the head's budget with what the guard let it grow by
  const void* const* tiles = nullptr;  // of at least `position` rows; one more when the position's own mass is measured
  int first_query_head = 0;
  const float* target = nullptr;    // [group, head_dim] query of `position`, rotated; null: predicted from `ring`
  const QueryRing* ring = nullptr;  // of the layer; holds the query of position - 1, for predictors from the past

  // Captured mass of `measured_position`, with its real rotated queries [group, head_dim]; null: not measured. Either
  // position - 1, whose selection `selected` then holds on entry, or `position` itself (measured == target), measured
  // with the new selection.
  const float* measured = nullptr;
  uint32_t measured_position = 0;
};

struct SelectionModel {
  int group_size = 0;
  int head_dim = 0;
  Dtype dtype = Dtype::kBf16;
  float attention_scale = 0;
  RopeShape rope;
};

// Bytes of keys, or of what stands for them, that SelectHead reads to answer a question. What it reads besides to
// measure captured mass does not count: a rank that measures nothing would not read it.
uint64_t ScoredKeyBytes(const SelectionModel& model, const HeadQuestion& question);

// One per worker thread.
struct SelectScratch {
  ScratchBuffer<float> queries, scores, importance;
  SoftmaxScratch softmax;
  ScratchBuffer<uint32_t> top_k;
};

// Replaces `selected` by Sel(position), ascending; returns the captured mass, NaN when not measured.
float SelectHead(const KernelTable& kernels, const SelectionModel& model, const HeadQuestion& question,
                 SelectScratch& scratch, std::vector<uint32_t>* selected);

}  // namespace winnow
