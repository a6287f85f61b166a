#include "cache_rank/select/host/list_picker.h"

#include "cache_rank/select/policy/mass.h"
#include "cache_rank/select/policy/top_k.h"
#include "cache_rank/select/policy/top_pages.h"
#include "cache_rank/select/scorer/captured_mass.h"
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
       .scale = head_.model.attention_scale,
       .units = units,
       .fixed = head_.Fixed(head_.last_row),
       .stop_rule = spec_.stop_rule,
       .bounds = spec_.stop_rule == StopRule::kBound ? shared_.bounds.Slice(heads.first, heads.count) : Softmaxes{},
       .budget = head_.question.budget_tokens,
       .epsilon = spec_.epsilon},
      scratch_.mass, selected);
  scratch_.scored_key_bytes += scratch_.mass.scored_key_bytes - before;
}

// Sinks, candidate pages and recent window are scored together: importance is relative to all that is known.
void ListPicker::PickCandidates(ListHeads heads, std::vector<uint32_t>* selected) {
  const PageUnits pages =
      ReducePages(PageImportance(GroupAggregation::kMax, heads), head_.page_tokens, head_.page_tokens, head_.first_row,
                  head_.last_row, scratch_.units.Reserve(head_.num_units()));
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
