#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "cache_rank/select/policy/fewest_rows.h"
#include "cache_rank/select/policy/top_k.h"
#include "cache_rank/select/scorer/token_scorer.h"

namespace winnow {

// What a set that holds too little of the softmax mass is to be widened by.
struct MissedRowsQuestion {
  Softmaxes softmaxes;                 // of the real queries
  std::span<const double> weights;     // [num_queries] by which the share of a query counts
  const float* importance = nullptr;   // [last] by which rows are taken; not NaN
  uint32_t first = 0;                  // rows [first, last) may be taken,
  uint32_t last = 0;                   //
  std::span<const uint32_t> selected;  // except these: ascending, within [first, last)
  double held = 0;                     // the sum over all queries that is there without them
  double target = 0;                   // and that is wanted
};

struct MissedRowsScratch {
  std::vector<uint32_t> missed, taken, added;
  ScratchBuffer<float> importance;
  ScratchBuffer<uint32_t> top_k;
  FewestRowsScratch fewest;
};

// Replaces `rows` by the fewest of the most important rows that bring what is held to the target, ties to the lower
// row, ascending. All that are not selected where they do not suffice, or where a mass is not a number.
//
// Rows are taken out by top-k of k = 64, 128, ... until they suffice, and only those of the last round are ordered
// further: a pass over the importance for each doubling, and time linear in the rows found.
void FewestMissedRows(const KernelTable& kernels, const MissedRowsQuestion& question, MissedRowsScratch& scratch,
                      std::vector<uint32_t>* rows);

}  // namespace winnow
