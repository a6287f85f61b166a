#pragma once
#include <cstdint>
#include <limits>
#include <span>

#include "cache_rank/select/scorer/row_groups.h"
#include "cache_rank/select/scorer/token_scorer.h"

namespace winnow {

// A(p, l, h) = [0, sink_tokens) + selected + [recent_start, position].
struct AttendedSet {
  uint32_t sink_tokens = 0;
  std::span<const uint32_t> selected;  // ascending, within [sink_tokens, recent_start)
  uint32_t recent_start = 0;
  uint32_t position = 0;
};

// Share of the exact softmax that A holds, averaged over the group's query heads. `softmaxes` are those of the real,
// rotated queries over rows [0, position], or over [0, position) with `own_scores` [num_queries] those of row
// `position`, for a selection in which that row had no say.
float CapturedMass(const Softmaxes& softmaxes, const float* own_scores, const AttendedSet& attended);
// The same before it is rounded, where it may exceed 1 by what the sums err.
double CapturedMassInDouble(const Softmaxes& softmaxes, const float* own_scores, const AttendedSet& attended);

// Share of the softmax over rows [0, position] that row `position` has, from its score and the lse of all others.
double OwnShare(float lse, float own_score);

// What is known of a captured mass.
struct CapturedMassFigure {
  float mass = std::numeric_limits<float>::quiet_NaN();  // averaged over the group's query heads; NaN: not measured
  bool is_lower_bound = false;  // some rows were not scored: the mass is at least this. Otherwise it is exact.
};

// Raw scores of the rows behind the last complete group (FixedRows), all of them attended.
struct TailScores {
  Scores scores;       // [num_queries, stride]
  uint32_t first = 0;  // columns [first, last)
  uint32_t last = 0;
};

// Scores rows [first, end), which lie in one tile, first a multiple of kKeyGroup.
TailScores ScoreTail(const KernelTable& kernels, const KeyTable& keys, uint32_t first, uint32_t end,
                     const float* queries, int num_queries, ScoreForm form, ScratchBuffer<float>& buffer);

// Upper bound of what the rows of pages [0, num_pages) that are not listed add to the softmax sum of query i,
// relative to exp(lse): sum over the pages of n * exp(bound), n rows of the page not being listed. Infinite where it is
// not a number.
double UnscoredBound(const Softmaxes& bounds, int i, uint32_t num_pages, uint32_t page_tokens,
                     std::span<const uint32_t> groups, float lse);

// Lower bound of the captured mass when only the rows of `groups` (which hold all of A but the tail) were scored:
//   sum_A e^s / (sum_scored e^s + sum_pages n e^bound)
// `scored` are softmaxes over the groups' columns, `bounds` those of the page bounds by the same queries, over the
// pages below fixed.PagesEnd() at least. Scores and bounds are taken as the index has them: with int8 or int4
// keys they err as KeyScoreParams says, and so do all masses that are measured from them.
CapturedMassFigure CapturedMassBound(const Softmaxes& scored, const RowGroups& groups, const TailScores& tail,
                                     const Softmaxes& bounds, const FixedRows& fixed,
                                     std::span<const uint32_t> selected);

}  // namespace winnow
