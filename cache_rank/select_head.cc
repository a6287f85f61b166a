#include "cache_rank/select_head.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "cache_rank/policy/top_k.h"
#include "cache_rank/policy/top_pages.h"
#include "cache_rank/scorer/page_scorer.h"
#include "common/base/check.h"
#include "common/base/kv_layout.h"
#include "common/selection/attended_set.h"

namespace winnow {
namespace {

// One call of SelectHead: the stages share the question, the scratch, and what earlier stages scored.
class HeadPipeline {
 public:
  // `queries` and `page_queries` are room for QueryFloats and PageQueryFloats.
  HeadPipeline(const KernelTable& kernels, const SelectionModel& model, const HeadQuestion& question,
               SelectScratch& scratch, size_t num_lists, float* queries, float* page_queries);
  // The selecting queries, and those of the position before.
  static size_t QueryFloats(const SelectionModel& model) {
    return static_cast<size_t>(2) * model.group_size * model.head_dim;
  }
  static size_t PageQueryFloats(const SelectionModel& model) { return 2 * QueryFloats(model); }

  bool scores_every_key() const { return every_key_; }
  bool measures_itself() const { return question_.measured != nullptr && !measures_previous(); }
  bool measures_previous() const { return question_.measured != nullptr && question_.measured_position != position_; }

  void PredictQueries();
  // What all lists of a head share, of all pipelines; they have the same scores_every_key().
  static void ScoreSharedKeys(std::span<HeadPipeline> pipelines);
  // After these: the lists, and the captured mass.
  CapturedMassFigure Answer(std::span<std::vector<uint32_t>> lists);

 private:
  void PickUnits(size_t list, std::vector<uint32_t>* selected);
  CapturedMassFigure MeasurePrevious(std::span<const std::vector<uint32_t>> lists);
  CapturedMassFigure MeasureItself(std::span<const std::vector<uint32_t>> lists);

  // Which shared scores are wanted: of rows with every_key_, otherwise of pages.
  bool is_cuboid() const { return spec_.scorer == Scorer::kPageCuboid; }
  bool needs_mass() const { return spec_.policy == Policy::kMass; }
  bool WantsRowSoftmax() const { return every_key_ && (by_softmax_ || needs_mass() || question_.measured != nullptr); }
  bool WantsRowScores() const { return every_key_ && !by_softmax_; }
  bool WantsBounds() const {
    return !every_key_ && ((measures_itself() && !question_.measures_exactly) ||
                           (needs_mass() && spec_.stop_rule == StopRule::kBound));
  }
  bool WantsPageScores() const { return !every_key_ && (spec_.scorer == Scorer::kTwoStage || !by_softmax_); }
  bool WantsPageSoftmax() const { return !every_key_ && !WantsPageScores() && (is_cuboid() || !WantsBounds()); }
  bool WantsMeasuringBounds() const { return !every_key_ && measures_previous() && !question_.measures_exactly; }
  KeyPass MeasuringPass() const { return {AllKeys(), queries_, measures_previous() ? 2 * group_ : group_}; }
  KeyPass RowPass() const { return {AllKeys(), queries_, group_}; }
  KeyPass BoundsPass() const { return {Pages(question_.index.bounds), page_queries_, group_}; }
  KeyPass MeasuringBoundsPass() const {
    return {Pages(question_.index.bounds), page_queries_ + static_cast<size_t>(2) * group_ * model_.head_dim, group_};
  }
  KeyPass PagePass() const {
    return {Pages(is_cuboid() ? question_.index.cuboids : question_.index.bounds), page_queries_, group_};
  }
  using Wants = bool (HeadPipeline::*)() const;
  using PassFn = KeyPass (HeadPipeline::*)() const;
  static void SoftmaxTogether(std::span<HeadPipeline> pipelines, Wants wants, PassFn pass_of,
                              Softmaxes HeadPipeline::*result, SoftmaxScratch& buffer);
  static void ScoreTogether(std::span<HeadPipeline> pipelines, Wants wants, PassFn pass_of);
  // Passes of those that want them, in scratch_.passes.
  static void ListPasses(std::span<HeadPipeline> pipelines, Wants wants, PassFn pass_of);
  void CountBytes(const KeyTable& keys, uint64_t bytes) {
    scratch_.scored_key_bytes += bytes;
    if (keys.head_dim != model_.head_dim) scratch_.page_key_bytes += bytes;
  }
  void CountJointBytes(uint64_t bytes);
  // Queries whose list is picked: all of the group, or one head.
  struct Heads {
    int first, count;
  };
  Heads HeadsOf(size_t list) const { return {static_cast<int>(list) * heads_per_list_, heads_per_list_}; }
  const float* Query(int head) const { return queries_ + static_cast<size_t>(head) * model_.head_dim; }

  KeyTable AllKeys() const { return {question_.index.keys, position_, model_.head_dim, question_.index.dtype}; }
  KeyTable Pages(const void* const* tiles) const {
    return {tiles, position_ / page_tokens_, 2 * model_.head_dim, question_.index.page_dtype};
  }
  KeyTable KeysOf(const RowGroups& groups) const {
    KeyTable keys = AllKeys();
    keys.groups = groups.groups().data();
    keys.num_keys = groups.columns();
    return keys;
  }
  Softmaxes SoftmaxOf(const KeyTable& keys, const float* queries, int count, SoftmaxScratch& scratch) {
    CountBytes(keys, keys.key_bytes());
    return SoftmaxKeys(kernels_, keys, queries, count, model_.attention_scale, scratch);
  }
  Scores ScoresOf(const KeyTable& keys, const float* queries, int count, ScratchBuffer<float>& scratch) {
    CountBytes(keys, keys.key_bytes());
    return ScoreKeys(kernels_, keys, queries, count, model_.attention_scale, scratch);
  }
  Softmaxes SoftmaxOfGroups(const RowGroups& groups, Heads heads, const float* queries, SoftmaxScratch& scratch);

  const float* Importance(GroupAggregation aggregation, Heads heads, uint32_t first, uint32_t last);
  const float* PageImportance(GroupAggregation aggregation, Heads heads);
  void PickRows(Heads heads, std::vector<uint32_t>* selected);
  void PickPages(Heads heads, std::vector<uint32_t>* selected);
  void PickCandidates(Heads heads, std::vector<uint32_t>* selected);
  void BoundUnread(const Softmaxes& scored, Heads heads, uint32_t first_column, uint32_t last_column);
  PageUnits IndexPages(const float* importance) {
    return ReducePages(importance, page_tokens_, page_tokens_, first_, last_, scratch_.units.Reserve(num_units_));
  }
  FixedRows Fixed(uint32_t recent_start) const { return {spec_.sink_tokens, recent_start, page_tokens_, position_}; }

  uint32_t CandidateRows() const {
    const uint64_t rows = uint64_t{question_.budget_tokens} * spec_.candidate_factor;
    return static_cast<uint32_t>(std::min<uint64_t>(rows, kUnlimitedBudget));
  }
  bool ScoresEveryKey() const {
    if (spec_.scorer != Scorer::kTwoStage) return spec_.scorer == Scorer::kToken;
    const uint32_t selectable = last_ - first_;
    return selectable < spec_.score_all_below_tokens || selectable <= CandidateRows();
  }

  const KernelTable& kernels_;
  const SelectionModel& model_;
  const HeadQuestion& question_;
  const SelectionSpec& spec_;
  SelectScratch& scratch_;
  const uint32_t position_;
  const uint32_t first_, last_;  // selectable rows
  const uint32_t page_tokens_;
  const uint32_t num_units_;
  const int group_, heads_per_list_;
  const bool by_softmax_;  // importance is a sum of softmaxes
  const bool every_key_;

  float* const queries_;       // [group, head_dim], behind them the measured ones of the position before
  float* const page_queries_;  // [group, 2 * head_dim], behind them likewise; without every_key_
  // What importance is taken from: rows with every_key_, pages otherwise; scores are raw where that is needed.
  Softmaxes softmaxes_;
  Scores scores_;
  Softmaxes bounds_;            // of pages, by the selecting queries; where something is to be bounded
  Softmaxes measuring_bounds_;  // the same by those of the position before
  Softmaxes candidates_;        // of the columns of scratch_.groups, of the last list
};

HeadPipeline::HeadPipeline(const KernelTable& kernels, const SelectionModel& model, const HeadQuestion& question,
                           SelectScratch& scratch, size_t num_lists, float* queries, float* page_queries)
    : kernels_(kernels),
      model_(model),
      question_(question),
      spec_(*question.spec),
      scratch_(scratch),
      position_(question.position),
      first_(spec_.sink_tokens),
      last_(RecentStart(question.position, spec_.recent_tokens, spec_.sink_tokens, kBlockTokens)),
      page_tokens_(question.index.page_tokens),
      num_units_(page_tokens_ == 0 ? 0 : last_ / page_tokens_ + 1),
      group_(model.group_size),
      heads_per_list_(model.group_size / static_cast<int>(num_lists)),
      by_softmax_(spec_.group_aggregation == GroupAggregation::kSoftmaxSum),
      every_key_(ScoresEveryKey()),
      queries_(queries),
      page_queries_(page_queries) {
  WINNOW_CHECK(num_lists == ListsPerHead(spec_, model));
  WINNOW_CHECK(!measures_previous() || question_.measured_position + 1 == position_);
  WINNOW_CHECK(every_key_ || question_.index.bounds != nullptr);
}

void HeadPipeline::PredictQueries() {
  const size_t floats = static_cast<size_t>(group_) * model_.head_dim;
  if (question_.target != nullptr) {
    std::copy_n(question_.target, floats, queries_);
  } else {
    PredictFromPast(kernels_, model_.rope, spec_, *question_.ring, position_, question_.first_query_head, group_,
                    model_.head_dim, queries_);
  }
  if (measures_previous()) std::copy_n(question_.measured, floats, queries_ + floats);
  if (!every_key_) PageQueries(queries_, measures_previous() ? 2 * group_ : group_, model_.head_dim, page_queries_);
}

// With every key, in one pass for those that measure the position before too. The position's own row has no say in its
// selection, even where its mass is measured.
void HeadPipeline::ScoreSharedKeys(std::span<HeadPipeline> pipelines) {
  using P = HeadPipeline;
  SelectScratch& scratch = pipelines[0].scratch_;
  SoftmaxTogether(pipelines, &P::WantsRowSoftmax, &P::MeasuringPass, &P::softmaxes_, scratch.softmax);
  ScoreTogether(pipelines, &P::WantsRowScores, &P::RowPass);
  SoftmaxTogether(pipelines, &P::WantsBounds, &P::BoundsPass, &P::bounds_, scratch.bound_softmax);
  ScoreTogether(pipelines, &P::WantsPageScores, &P::PagePass);
  SoftmaxTogether(pipelines, &P::WantsPageSoftmax, &P::PagePass, &P::softmaxes_, scratch.page_softmax);
  const uint64_t scored = scratch.scored_key_bytes;
  SoftmaxTogether(pipelines, &P::WantsMeasuringBounds, &P::MeasuringBoundsPass, &P::measuring_bounds_,
                  scratch.measured);
  scratch.measured_key_bytes += std::exchange(scratch.scored_key_bytes, scored) - scored;
  for (HeadPipeline& pipeline : pipelines) {
    const bool bounds_select = !pipeline.every_key_ && !pipeline.WantsPageScores() && !pipeline.WantsPageSoftmax();
    if (bounds_select) pipeline.softmaxes_ = pipeline.bounds_;
  }
}

void HeadPipeline::ListPasses(std::span<HeadPipeline> pipelines, Wants wants, PassFn pass_of) {
  std::vector<KeyPass>& passes = pipelines[0].scratch_.passes;
  passes.clear();
  for (const HeadPipeline& pipeline : pipelines) {
    if ((pipeline.*wants)()) passes.push_back((pipeline.*pass_of)());
  }
}

void HeadPipeline::CountJointBytes(uint64_t bytes) {
  uint64_t alone = 0;
  for (const KeyPass& pass : scratch_.passes) alone += pass.keys.key_bytes();
  CountBytes(scratch_.passes[0].keys, bytes);
  scratch_.shared_key_bytes += alone - bytes;
}

void HeadPipeline::SoftmaxTogether(std::span<HeadPipeline> pipelines, Wants wants, PassFn pass_of,
                                   Softmaxes HeadPipeline::*result, SoftmaxScratch& buffer) {
  ListPasses(pipelines, wants, pass_of);
  HeadPipeline& first = pipelines[0];
  const std::vector<KeyPass>& passes = first.scratch_.passes;
  std::vector<Softmaxes>& results = first.scratch_.pass_softmaxes;
  if (passes.empty()) return;
  results.resize(passes.size());
  if (passes.size() == 1) {
    results[0] = first.SoftmaxOf(passes[0].keys, passes[0].queries, passes[0].num_queries, buffer);
  } else {
    first.CountJointBytes(SoftmaxKeysJointly(first.kernels_, passes, first.model_.attention_scale, first.scratch_.joint,
                                             buffer, results));
  }
  size_t next = 0;
  for (HeadPipeline& pipeline : pipelines) {
    if ((pipeline.*wants)()) pipeline.*result = results[next++];
  }
}

void HeadPipeline::ScoreTogether(std::span<HeadPipeline> pipelines, Wants wants, PassFn pass_of) {
  ListPasses(pipelines, wants, pass_of);
  HeadPipeline& first = pipelines[0];
  const std::vector<KeyPass>& passes = first.scratch_.passes;
  std::vector<Scores>& results = first.scratch_.pass_scores;
  if (passes.empty()) return;
  results.resize(passes.size());
  ScratchBuffer<float>& buffer = first.scratch_.scores;
  if (passes.size() == 1) {
    results[0] = first.ScoresOf(passes[0].keys, passes[0].queries, passes[0].num_queries, buffer);
  } else {
    first.CountJointBytes(
        ScoreKeysJointly(first.kernels_, passes, first.model_.attention_scale, first.scratch_.joint, buffer, results));
  }
  size_t next = 0;
  for (HeadPipeline& pipeline : pipelines) {
    if ((pipeline.*wants)()) pipeline.scores_ = results[next++];
  }
}

CapturedMassFigure HeadPipeline::Answer(std::span<std::vector<uint32_t>> lists) {
  CapturedMassFigure mass;
  if (measures_previous()) mass = MeasurePrevious(lists);
  for (size_t i = 0; i < lists.size(); ++i) PickUnits(i, &lists[i]);
  if (measures_itself()) mass = MeasureItself(lists);
  return mass;
}

void HeadPipeline::PickUnits(size_t list, std::vector<uint32_t>* selected) {
  const Heads heads = HeadsOf(list);
  if (last_ <= first_) return selected->clear();
  if (every_key_) return PickRows(heads, selected);
  if (spec_.scorer == Scorer::kTwoStage) return PickCandidates(heads, selected);
  return PickPages(heads, selected);
}

// Importance of rows (every_key_) or pages [first, last) for some heads, from the shared scores.
const float* HeadPipeline::Importance(GroupAggregation aggregation, Heads heads, uint32_t first, uint32_t last) {
  float* importance = scratch_.importance.Reserve(last + 1);
  if (aggregation == GroupAggregation::kSoftmaxSum) {
    SumSoftmaxes(kernels_, softmaxes_.Slice(heads.first, heads.count), first, last, importance);
  } else {
    const Scores scores{scores_.row(heads.first), scores_.stride};
    AggregateScores(aggregation, scores, heads.count, first, last, importance);
  }
  return importance;
}

const float* HeadPipeline::PageImportance(GroupAggregation aggregation, Heads heads) {
  return Importance(aggregation, heads, 0, last_ / page_tokens_);
}

void HeadPipeline::PickRows(Heads heads, std::vector<uint32_t>* selected) {
  const float* importance = Importance(spec_.group_aggregation, heads, first_, last_);
  if (spec_.policy == Policy::kTopK) {
    return SelectTopK(kernels_, importance, first_, last_, question_.budget_tokens, scratch_.top_k, selected);
  }
  const Softmaxes softmaxes = softmaxes_.Slice(heads.first, heads.count);
  scratch_.held.assign(heads.count, 0);
  scratch_.unread.assign(heads.count, 0);
  for (int i = 0; i < heads.count; ++i) {
    scratch_.held[i] = softmaxes.Share(i, 0, first_) + softmaxes.Share(i, last_, position_ - last_);
  }
  SelectMassOfScored(kernels_,
                     {.softmaxes = softmaxes,
                      .importance = importance,
                      .importance_is_mass = by_softmax_,
                      .first = first_,
                      .last = last_,
                      .held = scratch_.held.data(),
                      .unread = scratch_.unread.data(),
                      .budget = question_.budget_tokens,
                      .epsilon = spec_.epsilon},
                     scratch_.scored_mass, selected);
}

void HeadPipeline::PickPages(Heads heads, std::vector<uint32_t>* selected) {
  const uint32_t unit = spec_.scorer == Scorer::kHierarchical ? spec_.physical_page_tokens : page_tokens_;
  const PageUnits units = ReducePages(PageImportance(spec_.group_aggregation, heads), page_tokens_, unit, first_, last_,
                                      scratch_.units.Reserve(num_units_));
  if (spec_.policy == Policy::kTopK) {
    return SelectTopPages(kernels_, units, question_.budget_tokens, scratch_.top_k, &scratch_.chosen, selected);
  }
  const uint64_t before = scratch_.mass.scored_key_bytes;
  SelectMassOfPages(
      kernels_,
      {.keys = AllKeys(),
       .queries = Query(heads.first),
       .num_queries = heads.count,
       .scale = model_.attention_scale,
       .units = units,
       .fixed = Fixed(last_),
       .stop_rule = spec_.stop_rule,
       .bounds = spec_.stop_rule == StopRule::kBound ? bounds_.Slice(heads.first, heads.count) : Softmaxes{},
       .budget = question_.budget_tokens,
       .epsilon = spec_.epsilon},
      scratch_.mass, selected);
  scratch_.scored_key_bytes += scratch_.mass.scored_key_bytes - before;
}

Softmaxes HeadPipeline::SoftmaxOfGroups(const RowGroups& groups, Heads heads, const float* queries,
                                        SoftmaxScratch& scratch) {
  return SoftmaxOf(KeysOf(groups), queries + static_cast<size_t>(heads.first) * model_.head_dim, heads.count, scratch);
}

// Sinks, candidate pages and recent window are scored together: importance is relative to all that is known.
void HeadPipeline::PickCandidates(Heads heads, std::vector<uint32_t>* selected) {
  const PageUnits pages = IndexPages(PageImportance(GroupAggregation::kMax, heads));
  TopPages(kernels_, pages, CandidateRows(), scratch_.top_k, &scratch_.chosen);
  RowGroups& groups = scratch_.groups;
  ListUnitGroups(Fixed(last_), pages, scratch_.chosen, &groups);
  const uint32_t first = groups.ColumnOf(first_), last = groups.ColumnOf(last_);
  float* importance = scratch_.importance.Reserve(groups.columns());
  const bool needs_softmax = by_softmax_ || spec_.policy == Policy::kMass || measures_itself();
  if (needs_softmax) candidates_ = SoftmaxOfGroups(groups, heads, queries_, scratch_.softmax);
  if (by_softmax_) {
    SumSoftmaxes(kernels_, candidates_, first, last, importance);
  } else {
    // The pages' scores in scratch_.scores are still needed by other lists.
    const Scores scores = ScoresOf(KeysOf(groups), Query(heads.first), heads.count, scratch_.tail);
    AggregateScores(spec_.group_aggregation, scores, heads.count, first, last, importance);
  }
  if (spec_.policy == Policy::kTopK) {
    SelectTopK(kernels_, importance, first, last, question_.budget_tokens, scratch_.top_k, selected);
  } else {
    BoundUnread(candidates_, heads, first, last);
    SelectMassOfScored(kernels_,
                       {.softmaxes = candidates_,
                        .importance = importance,
                        .first = first,
                        .last = last,
                        .held = scratch_.held.data(),
                        .unread = scratch_.unread.data(),
                        .budget = question_.budget_tokens,
                        .epsilon = spec_.epsilon},
                       scratch_.scored_mass, selected);
  }
  for (uint32_t& column : *selected) column = groups.Row(column);
}

// For the mass policy over candidates: what sinks and window hold, and what pages that are no candidates may hold, by
// the stop rule. The estimate: each as much as the least candidate page.
void HeadPipeline::BoundUnread(const Softmaxes& scored, Heads heads, uint32_t first_column, uint32_t last_column) {
  const RowGroups& groups = scratch_.groups;
  scratch_.held.assign(heads.count, 0);
  scratch_.unread.assign(heads.count, 0);
  for (int i = 0; i < heads.count; ++i) {
    scratch_.held[i] = scored.Share(i, 0, first_column) + scored.Share(i, last_column, groups.columns() - last_column);
    const uint32_t num_pages = last_ / page_tokens_;
    if (spec_.stop_rule == StopRule::kBound) {
      scratch_.unread[i] = UnscoredBound(bounds_.Slice(heads.first, heads.count), i, num_pages, page_tokens_,
                                         groups.groups(), scored.lse[i]);
      continue;
    }
    double least = std::numeric_limits<double>::infinity();
    for (const uint32_t page : scratch_.chosen) {
      // Columns of a page are as its rows: complete groups, one after the other.
      const uint32_t begin = std::max(page * page_tokens_, first_), end = std::min((page + 1) * page_tokens_, last_);
      least = std::min(least, scored.Share(i, groups.ColumnOf(begin), end - begin));
    }
    const uint32_t all = (last_ + page_tokens_ - 1) / page_tokens_ - first_ / page_tokens_;
    scratch_.unread[i] = least * static_cast<double>(all - scratch_.chosen.size());
  }
}

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

CapturedMassFigure HeadPipeline::MeasurePrevious(std::span<const std::vector<uint32_t>> lists) {
  const uint64_t scored_before = scratch_.scored_key_bytes;
  const uint32_t previous = question_.measured_position;
  const uint32_t recent_start = WindowStart(spec_, previous, question_.prompt_tokens);
  MeanMass mean;
  const float* real = Query(group_);
  // Of all keys: scored with the selecting queries, for this alone, or not at all.
  Softmaxes exact;
  if (every_key_) {
    exact = softmaxes_.Slice(group_, group_);
  } else if (question_.measures_exactly) {
    exact = SoftmaxOf(AllKeys(), real, group_, scratch_.measured);
  }
  for (size_t l = 0; l < lists.size(); ++l) {
    const Heads heads = HeadsOf(l);
    if (exact.lse != nullptr) {
      const Softmaxes softmaxes = exact.Slice(heads.first, heads.count);
      const float mass =
          CapturedMass(softmaxes, /*own_scores=*/nullptr, {spec_.sink_tokens, lists[l], recent_start, previous});
      mean.Add({.mass = mass}, heads.count);
      continue;
    }
    const FixedRows fixed = Fixed(recent_start);
    const Softmaxes bounds = measuring_bounds_.Slice(heads.first, heads.count);
    RowGroups& groups = scratch_.groups;
    ListRowGroups(fixed, lists[l], &groups);
    if (spec_.scorer == Scorer::kTwoStage && recent_start > first_) {
      // As many candidates as a selection by this query would score, so that the bound is as tight as one of its own.
      float* importance = scratch_.importance.Reserve(recent_start / page_tokens_ + 1);
      SumSoftmaxes(kernels_, bounds, 0, recent_start / page_tokens_, importance);
      const PageUnits pages = ReducePages(importance, page_tokens_, page_tokens_, first_, recent_start,
                                          scratch_.units.Reserve(num_units_ + 1));
      TopPages(kernels_, pages, CandidateRows(), scratch_.top_k, &scratch_.chosen);
      ListUnitGroups(fixed, pages, scratch_.chosen, &scratch_.candidates);
      groups.Merge(scratch_.candidates, scratch_.merged);
    }
    const Softmaxes scored = SoftmaxOfGroups(groups, heads, real, scratch_.softmax);
    const float* queries = real + static_cast<size_t>(heads.first) * model_.head_dim;
    const TailScores tail = ScoreTail(kernels_, AllKeys(), fixed.ScoredEnd(), position_, queries, heads.count,
                                      model_.attention_scale, scratch_.tail);
    mean.Add(CapturedMassBound(scored, groups, tail, bounds, fixed, lists[l]), heads.count);
  }
  scratch_.measured_key_bytes += std::exchange(scratch_.scored_key_bytes, scored_before) - scored_before;
  return mean.figure();
}

CapturedMassFigure HeadPipeline::MeasureItself(std::span<const std::vector<uint32_t>> lists) {
  const uint64_t scored_before = scratch_.scored_key_bytes;
  MeanMass mean;
  Softmaxes exact;
  if (every_key_) {
    exact = softmaxes_;
  } else if (question_.measures_exactly) {
    exact = SoftmaxOf(AllKeys(), queries_, group_, scratch_.measured);
  }
  for (size_t l = 0; l < lists.size(); ++l) {
    const Heads heads = HeadsOf(l);
    const FixedRows fixed{spec_.sink_tokens, last_, page_tokens_, position_};
    const TailScores tail = ScoreTail(kernels_, AllKeys(), fixed.ScoredEnd(), position_ + 1, Query(heads.first),
                                      heads.count, model_.attention_scale, scratch_.tail);
    if (exact.lse != nullptr) {
      float* own_scores = scratch_.importance.Reserve(heads.count);
      for (int i = 0; i < heads.count; ++i) own_scores[i] = tail.scores.row(i)[tail.last - 1];
      const Softmaxes softmaxes = exact.Slice(heads.first, heads.count);
      mean.Add({.mass = CapturedMass(softmaxes, own_scores, {spec_.sink_tokens, lists[l], last_, position_})},
               heads.count);
      continue;
    }
    RowGroups& groups = scratch_.groups;
    const bool scored_already = spec_.scorer == Scorer::kTwoStage && lists.size() == 1;
    if (!scored_already) {
      ListRowGroups(fixed, lists[l], &groups);
      candidates_ = SoftmaxOfGroups(groups, heads, queries_, scratch_.softmax);
    }
    mean.Add(CapturedMassBound(candidates_, groups, tail, bounds_.Slice(heads.first, heads.count), fixed, lists[l]),
             heads.count);
  }
  scratch_.measured_key_bytes += std::exchange(scratch_.scored_key_bytes, scored_before) - scored_before;
  return mean.figure();
}

}  // namespace

CapturedMassFigure SelectHead(const KernelTable& kernels, const SelectionModel& model, const HeadQuestion& question,
                              SelectScratch& scratch, std::span<std::vector<uint32_t>> lists) {
  HeadPipeline pipeline(kernels, model, question, scratch, lists.size(),
                        scratch.queries.Reserve(HeadPipeline::QueryFloats(model)),
                        scratch.page_queries.Reserve(HeadPipeline::PageQueryFloats(model)));
  pipeline.PredictQueries();
  HeadPipeline::ScoreSharedKeys({&pipeline, 1});
  return pipeline.Answer(lists);
}

void SelectHeads(const KernelTable& kernels, const SelectionModel& model, std::span<HeadTask> tasks,
                 SelectScratch& scratch) {
  const size_t query_floats = HeadPipeline::QueryFloats(model), page_floats = HeadPipeline::PageQueryFloats(model);
  float* queries = scratch.queries.Reserve(tasks.size() * query_floats);
  float* page_queries = scratch.page_queries.Reserve(tasks.size() * page_floats);
  std::vector<HeadPipeline> pipelines;
  pipelines.reserve(tasks.size());
  std::vector<HeadTask*> asked;
  // Apart, because what one kind shares lies where the other kind works row by row.
  for (const bool every_key : {true, false}) {
    pipelines.clear();
    asked.clear();
    for (HeadTask& task : tasks) {
      HeadPipeline& pipeline = pipelines.emplace_back(kernels, model, *task.question, scratch, task.lists.size(),
                                                      queries + pipelines.size() * query_floats,
                                                      page_queries + pipelines.size() * page_floats);
      if (pipeline.scores_every_key() == every_key) {
        asked.push_back(&task);
      } else {
        pipelines.pop_back();
      }
    }
    if (asked.empty()) continue;
    for (HeadPipeline& pipeline : pipelines) pipeline.PredictQueries();
    HeadPipeline::ScoreSharedKeys(pipelines);
    for (size_t i = 0; i < asked.size(); ++i) asked[i]->mass = pipelines[i].Answer(asked[i]->lists);
  }
}

}  // namespace winnow
