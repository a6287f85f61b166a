#include "cache_rank/select/host/list_picker.h"

#include <algorithm>
#include <limits>

#include "cache_rank/select/policy/mass.h"
#include "cache_rank/select/policy/top_k.h"
#include "cache_rank/select/policy/top_pages.h"
#include "cache_rank/select/scorer/captured_mass.h"
#include "cache_rank/select/scorer/page_group_scorer.h"
#include "cache_rank/select/scorer/row_groups.h"

namespace winnow {

void ListPicker::Pick(size_t list, std::vector<uint32_t>* selected) {
  const ListHeads heads = head_.HeadsOf(list);
  if (head_.last_row <= head_.first_row) return selected->clear();
  if (head_.scores_every_key) return PickRows(heads, selected);
  if (spec_.scorer == Scorer::kTwoStage) return PickCandidates(heads, selected);
  return PickPages(heads, selected);
}

const float* ListPicker::Importance(GroupAggregation aggregation, ListHeads heads, uint32_t first, uint32_t last) {
  float* importance = scratch_.importance.Reserve(last + 1);
  if (aggregation == GroupAggregation::kSoftmaxSum) {
    SumSoftmaxes(head_.kernels, shared_.softmaxes.Slice(heads.first, heads.count), first, last, importance);
  } else {
    const Scores scores{shared_.scores.row(heads.first), shared_.scores.stride};
    AggregateScores(aggregation, scores, heads.count, first, last, importance);
  }
  return importance;
}

const float* ListPicker::PageImportance(GroupAggregation aggregation, ListHeads heads) {
  return Importance(aggregation, heads, 0, head_.last_row / head_.page_tokens);
}

void ListPicker::PickRows(ListHeads heads, std::vector<uint32_t>* selected) {
  const float* importance = Importance(spec_.group_aggregation, heads, head_.first_row, head_.last_row);
  if (spec_.policy == Policy::kTopK) {
    return SelectTopK(head_.kernels, importance, head_.first_row, head_.last_row, head_.question.budget_tokens,
                      scratch_.top_k, selected);
  }
  const Softmaxes softmaxes = shared_.softmaxes.Slice(heads.first, heads.count);
  scratch_.held.assign(heads.count, 0);
  scratch_.unread.assign(heads.count, 0);
  for (int i = 0; i < heads.count; ++i) {
    scratch_.held[i] =
        softmaxes.Share(i, 0, head_.first_row) + softmaxes.Share(i, head_.last_row, head_.position - head_.last_row);
  }
  SelectMassOfScored(head_.kernels,
                     {.softmaxes = softmaxes,
                      .importance = importance,
                      .importance_is_mass = head_.sums_softmaxes,
                      .first = head_.first_row,
                      .last = head_.last_row,
                      .held = scratch_.held.data(),
                      .unread = scratch_.unread.data(),
                      .budget = head_.question.budget_tokens,
                      .epsilon = spec_.epsilon},
                     scratch_.scored_mass, selected);
}

void ListPicker::PickPages(ListHeads heads, std::vector<uint32_t>* selected) {
  const uint32_t unit = spec_.scorer == Scorer::kHierarchical ? spec_.physical_page_tokens : head_.page_tokens;
  const PageUnits units = ReducePages(PageImportance(spec_.group_aggregation, heads), head_.page_tokens, unit,
                                      head_.first_row, head_.last_row, scratch_.units.Reserve(head_.num_units()));
  if (spec_.policy == Policy::kTopK) {
    return SelectTopPages(head_.kernels, units, head_.question.budget_tokens, scratch_.top_k, &scratch_.chosen,
                          selected);
  }
  const uint64_t before = scratch_.mass.scored_key_bytes;
  SelectMassOfPages(
      head_.kernels,
      {.keys = head_.AllKeys(),
       .queries = head_.Query(heads.first),
       .num_queries = heads.count,
       .form = head_.model.score_form(),
       .units = units,
       .fixed = head_.Fixed(head_.last_row),
       .stop_rule = spec_.stop_rule,
       .bounds = spec_.stop_rule == StopRule::kBound ? shared_.bounds.Slice(heads.first, heads.count) : Softmaxes{},
       .budget = head_.question.budget_tokens,
       .epsilon = spec_.epsilon},
      scratch_.mass, selected);
  scratch_.scored_key_bytes += scratch_.mass.scored_key_bytes - before;
}

PageUnits ListPicker::CandidatePages(ListHeads heads) {
  float* const units = scratch_.units.Reserve(head_.num_units());
  const float* importance = units;
  if (head_.page_groups.leaves_out()) {
    ScorePagesOfGroups(heads, units);
  } else {
    importance = PageImportance(GroupAggregation::kMax, heads);
  }
  return ReducePages(importance, head_.page_tokens, head_.page_tokens, head_.first_row, head_.last_row, units);
}

void ListPicker::ScorePagesOfGroups(ListHeads heads, float* importance) {
  static_assert(kGroupPages == kKeyGroup);
  const PageGroups& groups = head_.page_groups;
  const uint32_t num_pages = head_.last_row / head_.page_tokens;
  const float* const queries = head_.page_queries + static_cast<int64_t>(heads.first) * 2 * head_.model.head_dim;
  KeyTable pages = head_.Pages(head_.question.index.bounds);
  ScorePageGroups(pages, queries, heads.count, groups, scratch_.importance.Reserve(groups.end));
  head_.CountBytes(pages, (groups.end - groups.begin) * kGroupPages * DtypeBytes(pages.dtype, pages.head_dim));
  std::vector<uint32_t>& kept = scratch_.kept_groups;
  KeptPageGroups(head_.kernels, scratch_.importance.Reserve(groups.end), groups, num_pages, scratch_.top_k, &kept);
  pages.groups = kept.data();
  pages.num_keys = static_cast<uint32_t>(kept.size()) * kGroupPages;
  const Scores scores = head_.ScoresOf(pages, queries, heads.count, scratch_.tail);
  float* const of_kept = scratch_.importance.Reserve(pages.num_keys);
  AggregateScores(GroupAggregation::kMax, scores, heads.count, 0, pages.num_keys, of_kept);
  // Groups that stay hold as many rows as are wanted of pages, and none of the others is the better one.
  std::fill_n(importance, num_pages, -std::numeric_limits<float>::infinity());
  for (size_t i = 0; i < kept.size(); ++i) {
    const uint32_t first = kept[i] * kGroupPages;
    std::copy_n(of_kept + i * kGroupPages, std::min(kGroupPages, num_pages - first), importance + first);
  }
}

// Sinks, candidate pages and recent window are scored together: importance is relative to all that is known.
void ListPicker::PickCandidates(ListHeads heads, std::vector<uint32_t>* selected) {
  const PageUnits pages = CandidatePages(heads);
  TopPages(head_.kernels, pages, head_.CandidateRows(), scratch_.top_k, &scratch_.chosen);
  RowGroups& groups = scratch_.groups;
  ListUnitGroups(head_.Fixed(head_.last_row), pages, scratch_.chosen, &groups);
  const uint32_t first = groups.ColumnOf(head_.first_row), last = groups.ColumnOf(head_.last_row);
  float* importance = scratch_.importance.Reserve(groups.columns());
  const bool needs_softmax = head_.sums_softmaxes || spec_.policy == Policy::kMass || head_.measures_itself();
  if (needs_softmax) {
    candidates_ = head_.SoftmaxOf(head_.KeysOf(groups), head_.Query(heads.first), heads.count, scratch_.softmax);
  }
  if (head_.sums_softmaxes) {
    SumSoftmaxes(head_.kernels, candidates_, first, last, importance);
  } else {
    // The pages' scores in scratch_.scores are still needed by other lists.
    const Scores scores = head_.ScoresOf(head_.KeysOf(groups), head_.Query(heads.first), heads.count, scratch_.tail);
    AggregateScores(spec_.group_aggregation, scores, heads.count, first, last, importance);
  }
  if (spec_.policy == Policy::kTopK) {
    SelectTopK(head_.kernels, importance, first, last, head_.question.budget_tokens, scratch_.top_k, selected);
  } else {
    BoundUnread(heads, first, last);
    SelectMassOfScored(head_.kernels,
                       {.softmaxes = candidates_,
                        .importance = importance,
                        .importance_is_mass = head_.sums_softmaxes && spec_.stop_rule == StopRule::kEstimate,
                        .first = first,
                        .last = last,
                        .held = scratch_.held.data(),
                        .unread = scratch_.unread.data(),
                        .budget = head_.question.budget_tokens,
                        .epsilon = spec_.epsilon},
                       scratch_.scored_mass, selected);
  }
  for (uint32_t& column : *selected) column = groups.Row(column);
}

// By the estimate what is no candidate holds nothing.
void ListPicker::BoundUnread(ListHeads heads, uint32_t first_column, uint32_t last_column) {
  const RowGroups& groups = scratch_.groups;
  scratch_.held.assign(heads.count, 0);
  scratch_.unread.assign(heads.count, 0);
  for (int i = 0; i < heads.count; ++i) {
    scratch_.held[i] =
        candidates_.Share(i, 0, first_column) + candidates_.Share(i, last_column, groups.columns() - last_column);
    if (spec_.stop_rule == StopRule::kEstimate) continue;
    scratch_.unread[i] =
        UnscoredBound(shared_.bounds.Slice(heads.first, heads.count), i, head_.last_row / head_.page_tokens,
                      head_.page_tokens, groups.groups(), candidates_.lse[i]);
  }
}

}  // namespace winnow
