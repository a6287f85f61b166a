#include "cache_rank/select/host/measure_lists.h"

#include <cstdint>
#include <utility>

#include "cache_rank/select/policy/top_pages.h"
#include "cache_rank/select/scorer/page_scorer.h"
#include "cache_rank/select/scorer/row_groups.h"
#include "common/selection/attended_set.h"

namespace winnow {
namespace {

// Averages what one list each tells of its heads.
class MeanMass {
 public:
  void Add(const CapturedMassFigure& figure, int heads) {
    mass_ += double{figure.mass} * heads;
    heads_ += heads;
    is_lower_bound_ |= figure.is_lower_bound;
  }
  CapturedMassFigure figure() const { return {static_cast<float>(mass_ / heads_), is_lower_bound_}; }

 private:
  double mass_ = 0;
  int heads_ = 0;
  bool is_lower_bound_ = false;
};

}  // namespace

CapturedMassFigure MeasurePrevious(const HeadContext& head, const SharedScores& shared,
                                   std::span<const std::vector<uint32_t>> lists) {
  const SelectionSpec& spec = head.spec;
  SelectScratch& scratch = head.scratch;
  const uint64_t scored_before = scratch.scored_key_bytes;
  const uint32_t previous = head.question.measured_position;
  const uint32_t recent_start = WindowStart(spec, previous, head.question.prompt_tokens);
  MeanMass mean;
  // Of all keys: scored with the selecting queries, for this alone, or not at all.
  Softmaxes exact;
  if (head.scores_every_key) {
    exact = shared.softmaxes.Slice(head.group_size, head.group_size);
  } else if (head.question.measures_exactly) {
    exact = head.SoftmaxOf(head.AllKeys(), head.PreviousQuery(0), head.group_size, scratch.measured);
  }
  for (size_t l = 0; l < lists.size(); ++l) {
    const ListHeads heads = head.HeadsOf(l);
    if (exact.lse != nullptr) {
      const Softmaxes softmaxes = exact.Slice(heads.first, heads.count);
      const float mass =
          CapturedMass(softmaxes, /*own_scores=*/nullptr, {spec.sink_tokens, lists[l], recent_start, previous});
      mean.Add({.mass = mass}, heads.count);
      continue;
    }
    const FixedRows fixed = head.Fixed(recent_start);
    const Softmaxes bounds = shared.measuring_bounds.Slice(heads.first, heads.count);
    RowGroups& groups = scratch.groups;
    ListRowGroups(fixed, lists[l], &groups);
    if (spec.scorer == Scorer::kTwoStage && recent_start > head.first_row) {
      // As many candidates as a selection by this query would score, so that the bound is as tight as one of its own.
      float* importance = scratch.importance.Reserve(recent_start / head.page_tokens + 1);
      SumSoftmaxes(head.kernels, bounds, 0, recent_start / head.page_tokens, importance);
      const PageUnits pages = ReducePages(importance, head.page_tokens, head.page_tokens, head.first_row, recent_start,
                                          scratch.units.Reserve(head.num_units() + 1));
      TopPages(head.kernels, pages, head.CandidateRows(), scratch.top_k, &scratch.chosen);
      ListUnitGroups(fixed, pages, scratch.chosen, &scratch.candidates);
      groups.Merge(scratch.candidates, scratch.merged);
    }
    const float* queries = head.PreviousQuery(heads.first);
    const Softmaxes scored = head.SoftmaxOf(head.KeysOf(groups), queries, heads.count, scratch.softmax);
    const TailScores tail = ScoreTail(head.kernels, head.AllKeys(), fixed.ScoredEnd(), head.position, queries,
                                      heads.count, head.model.score_form(), scratch.tail);
    mean.Add(CapturedMassBound(scored, groups, tail, bounds, fixed, lists[l]), heads.count);
  }
  scratch.measured_key_bytes += std::exchange(scratch.scored_key_bytes, scored_before) - scored_before;
  return mean.figure();
}

CapturedMassFigure MeasureItself(const HeadContext& head, const SharedScores& shared, const Softmaxes& candidates,
                                 std::span<const std::vector<uint32_t>> lists) {
  const SelectionSpec& spec = head.spec;
  SelectScratch& scratch = head.scratch;
  const uint64_t scored_before = scratch.scored_key_bytes;
  MeanMass mean;
  Softmaxes exact;
  if (head.scores_every_key) {
    exact = shared.softmaxes;
  } else if (head.question.measures_exactly) {
    exact = head.SoftmaxOf(head.AllKeys(), head.queries, head.group_size, scratch.measured);
  }
  for (size_t l = 0; l < lists.size(); ++l) {
    const ListHeads heads = head.HeadsOf(l);
    const FixedRows fixed = head.Fixed(head.last_row);
    const TailScores tail = ScoreTail(head.kernels, head.AllKeys(), fixed.ScoredEnd(), head.position + 1,
                                      head.Query(heads.first), heads.count, head.model.score_form(), scratch.tail);
    if (exact.lse != nullptr) {
      float* own_scores = scratch.importance.Reserve(heads.count);
      for (int i = 0; i < heads.count; ++i) own_scores[i] = tail.scores.row(i)[tail.last - 1];
      const Softmaxes softmaxes = exact.Slice(heads.first, heads.count);
      mean.Add(
          {.mass = CapturedMass(softmaxes, own_scores, {spec.sink_tokens, lists[l], head.last_row, head.position})},
          heads.count);
      continue;
    }
    RowGroups& groups = scratch.groups;
    Softmaxes scored = candidates;
    const bool scored_already = spec.scorer == Scorer::kTwoStage && lists.size() == 1;
    if (!scored_already) {
      ListRowGroups(fixed, lists[l], &groups);
      scored = head.SoftmaxOf(head.KeysOf(groups), head.Query(heads.first), heads.count, scratch.softmax);
    }
    mean.Add(CapturedMassBound(scored, groups, tail, shared.bounds.Slice(heads.first, heads.count), fixed, lists[l]),
             heads.count);
  }
  scratch.measured_key_bytes += std::exchange(scratch.scored_key_bytes, scored_before) - scored_before;
  return mean.figure();
}

}  // namespace winnow
