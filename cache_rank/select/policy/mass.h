#pragma once
#include <cstdint>
#include <vector>

#include "cache_rank/select/policy/fewest_rows.h"
#include "cache_rank/select/policy/top_k.h"
#include "cache_rank/select/scorer/captured_mass.h"
#include "cache_rank/select/scorer/row_groups.h"
#include "cache_rank/select/scorer/token_scorer.h"
#include "common/selection/selection_spec.h"

namespace winnow {

// The mass policy (PSA, arXiv:2503.00392, Algorithm 1): rows in the order of their importance until the attended set
// holds 1 - epsilon of the softmax mass, averaged over the group's query heads as captured mass is, and never more than
// the budget. Sinks and recent window count as held; a position's own row, which is attended anyway, is left out. The
// mass is that of the query that selects: with a predicted one the real query's may be lower.

// Columns of scored rows (of all rows, or of groups of candidates), when the scores are known before the choice.
struct ScoredMassQuestion {
  Softmaxes softmaxes;
  const float* importance = nullptr;  // [last]
  bool importance_is_mass = false;    // importance is the sum of the softmaxes, and nothing is unread
  uint32_t first = 0;                 // selectable columns
  uint32_t last = 0;
  const double* held = nullptr;    // [num_queries] share of the scored softmax that sinks and window have
  const double* unread = nullptr;  // [num_queries] what rows that are not scored add to its sum, relative to it
  uint32_t budget = 0;
  float epsilon = 0;
};
struct ScoredMassScratch {
  ScratchBuffer<uint32_t> top_k;
  ScratchBuffer<float> run_scales, mass;
  FewestRowsScratch fewest;
};
// Replaces `selected` by the fewest of the most important columns that reach the target, ascending.
void SelectMassOfScored(const KernelTable& kernels, const ScoredMassQuestion& question, ScoredMassScratch& scratch,
                        std::vector<uint32_t>* selected);

// Units read one after the other: keys are scored batch by batch in the order of the units' importance, and the stop is
// decided after each unit.
struct PageMassQuestion {
  KeyTable keys;                   // num_keys is not used: rows are chosen by the units
  const float* queries = nullptr;  // [num_queries, head_dim]
  int num_queries = 0;
  ScoreForm form;
  PageUnits units;
  FixedRows fixed;
  // kEstimate: what the N units not read hold is taken as N times the least mass of a unit read so far (AS_min * N_left
  // of Algorithm 1). No bound: an estimate's order is not that of the masses.
  // kBound: it is at most sum n * exp(bound) over their pages, from `bounds`.
  StopRule stop_rule = StopRule::kEstimate;
  Softmaxes bounds;  // of the pages below fixed.PagesEnd() at least; kBound only
  uint32_t budget = 0;
  float epsilon = 0;
};
struct PageMassScratch {
  SoftmaxScratch softmax;
  ScratchBuffer<float> tail;
  RowGroups fixed_groups;
  std::vector<uint32_t> groups, order, chosen;
  std::vector<double> remaining;  // [num_queries][2 * leaves]
  struct HeldMass {
    double log = 0;        // log of the sum of e^s held
    double log_least = 0;  // of the least unit read
  };
  std::vector<HeldMass> heads;
  uint64_t scored_key_bytes = 0;  // added to
};
// Replaces `selected` by the rows of the units read, ascending; the unit that would exceed the budget gives its first
// rows.
void SelectMassOfPages(const KernelTable& kernels, const PageMassQuestion& question, PageMassScratch& scratch,
                       std::vector<uint32_t>* selected);

}  // namespace winnow
