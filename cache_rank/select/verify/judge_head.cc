#include "cache_rank/select/verify/judge_head.h"

#include <algorithm>
#include <iterator>

#include "cache_rank/select/policy/top_k.h"
#include "cache_rank/select/scorer/captured_mass.h"
#include "common/base/kv_layout.h"
#include "common/selection/attended_set.h"

namespace winnow {
namespace {

// One call of JudgeHead that has to score the keys.
class Judgement {
 public:
  Judgement(const KernelTable& kernels, const SelectionModel& model, const HeadTrial& trial, SelectScratch& scratch,
            JudgeScratch& judge)
      : kernels_(kernels),
        model_(model),
        trial_(trial),
        spec_(*trial.spec),
        scratch_(scratch),
        judge_(judge),
        first_(spec_.sink_tokens),
        last_(WindowStart(spec_, trial.position, trial.prompt_tokens)) {}

  // Mass of A with these rows for Sel.
  double Mass(const std::vector<uint32_t>& rows) const { return Mass(std::span<const uint32_t>(rows)); }
  double Mass(std::span<const uint32_t> rows) const {
    return CapturedMassInDouble(softmaxes_, judge_.own_scores.data(), {first_, rows, last_, trial_.position});
  }
  uint32_t num_missed() const { return last_ - first_ - static_cast<uint32_t>(trial_.selected.size()); }

  void ScoreKeys();
  void RankRows();
  // What A lacks of the top-k.
  void ListMissedTopK(std::vector<uint32_t>* rows);
  // The fewest rows that bring `mass`, that of A, to `wanted`.
  void ListFewest(double mass, double wanted, std::vector<uint32_t>* rows);

 private:
  KeyTable KeysBefore() const { return trial_.index.Keys(trial_.position, model_.head_dim); }

  const KernelTable& kernels_;
  const SelectionModel& model_;
  const HeadTrial& trial_;
  const SelectionSpec& spec_;
  SelectScratch& scratch_;
  JudgeScratch& judge_;
  const uint32_t first_, last_;  // selectable rows
  Softmaxes softmaxes_;          // over rows [0, position)
  const float* importance_ = nullptr;
};

void Judgement::ScoreKeys() {
  const uint32_t position = trial_.position;
  const int group = model_.group_size;
  const KeyTable own =
      trial_.index.Keys(position % kBlockTokens + 1, model_.head_dim, /*first_block=*/position / kBlockTokens);
  const Scores scores = winnow::ScoreKeys(kernels_, own, trial_.query, group, model_.attention_scale, scratch_.scores);
  judge_.own_scores.resize(group);
  for (int i = 0; i < group; ++i) judge_.own_scores[i] = scores.row(i)[position % kBlockTokens];
  softmaxes_ = SoftmaxKeys(kernels_, KeysBefore(), trial_.query, group, model_.attention_scale, scratch_.softmax);
  scratch_.scored_key_bytes += KeysBefore().key_bytes();
}

void Judgement::RankRows() {
  float* importance = scratch_.importance.Reserve(last_);
  importance_ = importance;
  if (spec_.group_aggregation == GroupAggregation::kSoftmaxSum) {
    return SumSoftmaxes(kernels_, softmaxes_, first_, last_, importance);
  }
  const int group = model_.group_size;
  const Scores scores =
      winnow::ScoreKeys(kernels_, KeysBefore(), trial_.query, group, model_.attention_scale, scratch_.scores);
  scratch_.scored_key_bytes += KeysBefore().key_bytes();
  AggregateScores(spec_.group_aggregation, scores, group, first_, last_, importance);
}

void Judgement::ListMissedTopK(std::vector<uint32_t>* rows) {
  SelectTopK(kernels_, importance_, first_, last_, trial_.budget_tokens, scratch_.top_k, &judge_.top_k);
  std::set_difference(judge_.top_k.begin(), judge_.top_k.end(), trial_.selected.begin(), trial_.selected.end(),
                      std::back_inserter(*rows));
}

void Judgement::ListFewest(double mass, double wanted, std::vector<uint32_t>* rows) {
  judge_.weights.clear();
  for (int i = 0; i < model_.group_size; ++i) {
    judge_.weights.push_back((1 - OwnShare(softmaxes_.lse[i], judge_.own_scores[i])) / model_.group_size);
  }
  FewestMissedRows(kernels_,
                   {.softmaxes = softmaxes_,
                    .weights = judge_.weights,
                    .importance = importance_,
                    .first = first_,
                    .last = last_,
                    .selected = trial_.selected,
                    .held = mass,
                    .target = wanted},
                   judge_.missed_rows, rows);
}

}  // namespace

void JudgeHead(const KernelTable& kernels, const SelectionModel& model, const HeadTrial& trial, SelectScratch& scratch,
               JudgeScratch& judge, HeadPartial* partial) {
  const float wanted = trial.spec->min_captured_mass;
  const bool corrects = trial.spec->correction == Correction::kRemote;
  const auto is_below = [&](float mass) { return wanted > 0 && !(mass >= wanted); };
  *partial = {.o = std::move(partial->o), .lse = std::move(partial->lse)};
  partial->o.clear();
  partial->lse.clear();
  if (trial.mass_of_top_k.has_value() && !is_below(*trial.mass_of_top_k)) {  // nothing can be missing from the top-k
    partial->mass_before = partial->mass_after = *trial.mass_of_top_k;
    return;
  }
  Judgement judgement(kernels, model, trial, scratch, judge);
  judgement.ScoreKeys();
  const double mass = judgement.Mass(trial.selected);
  partial->mass_before = partial->mass_after = std::min(static_cast<float>(mass), 1.0f);
  const bool below = is_below(partial->mass_before);
  if (!below && !corrects) return;

  judgement.RankRows();
  std::vector<uint32_t>& missed_top_k = judge.missed_top_k;
  missed_top_k.clear();
  judgement.ListMissedTopK(&missed_top_k);
  // Both lists are the first of the missed rows in the order of their importance: the longer one holds the other.
  const std::vector<uint32_t>* rows = &missed_top_k;
  if (below) {
    judgement.ListFewest(mass, wanted, &judge.fewest);
    partial->rows_needed = static_cast<uint32_t>(judge.fewest.size());
    if (!corrects || judge.fewest.size() > missed_top_k.size()) rows = &judge.fewest;
  }
  const bool everything = rows->size() == judgement.num_missed();
  if (everything) partial->mass_after = 1;
  if (rows->empty()) return;
  if (!everything) {
    judge.attended.clear();
    std::set_union(rows->begin(), rows->end(), trial.selected.begin(), trial.selected.end(),
                   std::back_inserter(judge.attended));
    partial->mass_after = std::min(static_cast<float>(judgement.Mass(judge.attended)), 1.0f);
  }
  partial->action = rows->size() > missed_top_k.size() ? CorrectionAction::kWidened : CorrectionAction::kMissedTopK;
  judge.read_rows = rows;
  partial->rows_read = static_cast<uint32_t>(rows->size());
  partial->o.resize(static_cast<size_t>(model.group_size) * model.head_dim);
  partial->lse.resize(model.group_size);
  kernels.attend_blocks(
      {.q = trial.query,
       .num_queries = model.group_size,
       .head_dim = model.head_dim,
       .scale = model.attention_scale,
       .blocks = trial.row_blocks,
       .kv_dtype = model.dtype,
       .row = model.row,
       .positions = rows->data(),
       .num_rows = partial->rows_read,
       .o = partial->o.data(),
       .lse = partial->lse.data(),
       .scratch = judge.attention.Reserve(AttendBlocksScratchBytes(model.group_size, model.head_dim))});
}

}  // namespace winnow
