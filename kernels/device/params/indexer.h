#pragma once
#include <cstdint>

#include "kernels/device/params/attention.h"
#include "kernels/device/params/selection.h"
#include "kernels/device/stream.h"

namespace winnow::device {

// Scores of all positions up to a query's own by the model's own indexer, of queries that have more of them than they
// select, with what SelectionKernels::top_k needs behind it, and with the lists of what is then attended to.
struct IndexScoreParams {
  const void* rows = nullptr;  // bf16, of slots or by position
  int key_dim = 0;             // of rows, behind whose keys the index keys are
  int dim = 0;
  int num_heads = 0;
  // [num_rows], may be null: lists without sinks whose slots hold every row by position. Of rows that select they come
  // to name entries [row * max_budget, + budget) of the launch's selected positions, and nothing else.
  AttentionList* lists = nullptr;
  const uint32_t* pages = nullptr;      // of lists; without, row p of all queries is the p-th of `rows`
  const uint32_t* positions = nullptr;  // [num_rows] of the queries, kNoPosition: none
  uint32_t first_position = 0;          // without `positions`: of the first query, behind which the others come
  const uint32_t* budgets = nullptr;    // [num_rows] that each selects, 0: nothing; null: max_budget
  uint32_t max_budget = 0;
  int num_rows = 0;                     // 1..64
  const float* queries = nullptr;       // IndexAppendParams::queries
  uint32_t max_keys = 0;                // greatest number of a query this launch may meet: fixes the grid alone
  float* scores = nullptr;              // [num_rows, stride]
  int64_t stride = 0;                   // a multiple of 4
  SelectionList* selections = nullptr;  // [num_rows], empty ones of queries that select nothing
};

struct IndexerKernels {
  void (*scores)(Stream, const IndexScoreParams&);
};
extern const IndexerKernels kIndexerKernels;

}  // namespace winnow::device
