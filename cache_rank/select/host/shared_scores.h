#pragma once
#include <span>

#include "cache_rank/select/host/head_context.h"
#include "cache_rank/select/scorer/token_scorer.h"

namespace winnow {

// What all lists of a head take from one pass over its keys, or over its pages.
struct SharedScores {
  // Importance comes from one of these: of rows with HeadContext::scores_every_key, otherwise of pages. The softmaxes
  // of rows hold those of the position before, too, behind the group's, where it is measured.
  Softmaxes softmaxes;
  Scores scores;
  Softmaxes bounds;            // of pages, by the selecting queries; where something is to be bounded
  Softmaxes measuring_bounds;  // the same by those of the position before
};

// For heads of different sequences that have the same scores_every_key, specification and scratch, whose queries are
// there: blocks that sequences share are read once. One of `scores` per head; they lie in the scratch.
void ScoreShared(std::span<const HeadContext> heads, std::span<SharedScores> scores);

}  // namespace winnow
