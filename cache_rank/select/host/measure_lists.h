#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "cache_rank/select/host/head_context.h"
#include "cache_rank/select/host/shared_scores.h"
#include "cache_rank/select/scorer/captured_mass.h"

namespace winnow {

// The captured mass of a head, averaged over its lists: exact where every key has a score, or is to be given one,
// otherwise a lower bound from the rows that are scored and the bounds of pages. Keys that are read for this alone
// count as measured (SelectScratch).

// Of the position before, with its real queries: HeadContext::measures_previous(). `lists` are that position's.
CapturedMassFigure MeasurePrevious(const HeadContext& head, const SharedScores& shared,
                                   std::span<const std::vector<uint32_t>> lists);
// Of the position itself: HeadContext::measures_itself(). `lists` have just been picked; `candidates` as ListPicker has
// them.
CapturedMassFigure MeasureItself(const HeadContext& head, const SharedScores& shared, const Softmaxes& candidates,
                                 std::span<const std::vector<uint32_t>> lists);

}  // namespace winnow
