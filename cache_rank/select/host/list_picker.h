#pragma once
#include <cstdint>
#include <vector>

#include "cache_rank/select/host/head_context.h"
#include "cache_rank/select/host/shared_scores.h"
#include "cache_rank/select/scorer/page_scorer.h"

namespace winnow {

// Picks the lists of a head from its shared scores: rows where every key has a score, whole pages, or, in two stages,
// rows of the best pages; by the policy of the specification. One list after the other.
class ListPicker {
 public:
  ListPicker(const HeadContext& head, const SharedScores& shared)
      : head_(head), spec_(head.spec), scratch_(head.scratch), shared_(shared) {}

  // Replaces `selected` by list number `list`, ascending.
  void Pick(size_t list, std::vector<uint32_t>* selected);

  // In two stages: softmaxes of the last list's queries over the columns of SelectScratch::groups (sinks, candidates
  // and recent window), where its mass, or the head's, is wanted.
  const Softmaxes& candidates() const { return candidates_; }

 private:
  void PickRows(ListHeads heads, std::vector<uint32_t>* selected);
  void PickPages(ListHeads heads, std::vector<uint32_t>* selected);
  void PickCandidates(ListHeads heads, std::vector<uint32_t>* selected);
  // Importance of rows or pages [first, last) for some heads, from the shared scores.
  const float* Importance(GroupAggregation aggregation, ListHeads heads, uint32_t first, uint32_t last);
  const float* PageImportance(GroupAggregation aggregation, ListHeads heads);
  // Two-stage: all pages, of which those that groups leave out have the least importance.
  PageUnits CandidatePages(ListHeads heads);
  void ScorePagesOfGroups(ListHeads heads, float* importance);
  // For the mass policy over candidates, in scratch: what sinks and window hold, and what pages that are no candidates
  // may hold, by the stop rule.
  void BoundUnread(ListHeads heads, uint32_t first_column, uint32_t last_column);

  const HeadContext& head_;
  const SelectionSpec& spec_;
  SelectScratch& scratch_;
  const SharedScores& shared_;
  Softmaxes candidates_;
};

}  // namespace winnow
