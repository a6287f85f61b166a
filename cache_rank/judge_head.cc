#include "cache_rank/judge_head.h"

#include <algorithm>
#include <iterator>

#include "cache_rank/policy/top_k.h"
#include "cache_rank/scorer/captured_mass.h"
#include "common/base/kv_layout.h"

namespace winnow {
namespace {

uint32_t WindowStart(const HeadTrial& trial) {
  return RecentStart(trial.position, trial.spec->recent_tokens, trial.spec->sink_tokens, kBlockTokens);
}

struct Masses {
  float of_attended = 0;
  float with_top_k = 0;
};

// Scores every key with the real query: the mass of A, the top-k rows that A misses, and the mass with them.
Masses MeasureAgainstTopK(const KernelTable& kernels, const SelectionModel& model, const HeadTrial& trial,
                          SelectScratch& scratch, JudgeScratch& judge) {
  const SelectionSpec& spec = *trial.spec;
  const uint32_t position = trial.position, first = spec.sink_tokens, last = WindowStart(trial);
  const int group = model.group_size;
  float* own_scores = scratch.queries.Reserve(group);
  {
    const KeyTable own{trial.tiles + position / kBlockTokens, position % kBlockTokens + 1, model.head_dim, model.dtype};
    const Scores scores = ScoreKeys(kernels, own, trial.query, group, model.attention_scale, scratch.scores);
    for (int i = 0; i < group; ++i) own_scores[i] = scores.row(i)[position % kBlockTokens];
  }
  const KeyTable keys{trial.tiles, position, model.head_dim, model.dtype};
  const Softmaxes softmaxes = SoftmaxKeys(kernels, keys, trial.query, group, model.attention_scale, scratch.softmax);
  float* importance = scratch.importance.Reserve(last);
  if (spec.group_aggregation == GroupAggregation::kSoftmaxSum) {
    SumSoftmaxes(kernels, softmaxes, first, last, importance);
  } else {
    const Scores scores = ScoreKeys(kernels, keys, trial.query, group, model.attention_scale, scratch.scores);
    AggregateScores(spec.group_aggregation, scores, group, first, last, importance);
  }
  SelectTopK(kernels, importance, first, last, trial.budget_tokens, scratch.top_k, &judge.top_k);
  std::set_difference(judge.top_k.begin(), judge.top_k.end(), trial.selected.begin(), trial.selected.end(),
                      std::back_inserter(judge.missed));
  judge.attended.clear();
  std::set_union(judge.top_k.begin(), judge.top_k.end(), trial.selected.begin(), trial.selected.end(),
                 std::back_inserter(judge.attended));
  Masses masses;
  masses.of_attended = CapturedMass(softmaxes, own_scores, {spec.sink_tokens, trial.selected, last, position});
  masses.with_top_k = judge.missed.empty()
                          ? masses.of_attended
                          : CapturedMass(softmaxes, own_scores, {spec.sink_tokens, judge.attended, last, position});
  return masses;
}

}  // namespace

CorrectionAction DecideCorrection(const SelectionSpec& spec, float mass, float mass_with_top_k) {
  const float wanted = spec.min_captured_mass;
  const bool below = wanted > 0 && !(mass >= wanted);
  if (below && !(mass_with_top_k >= wanted)) return CorrectionAction::kComplement;
  if (below || spec.correction == Correction::kRemote) return CorrectionAction::kMissedTopK;
  return CorrectionAction::kNone;
}

uint64_t ScoredKeyBytes(const SelectionModel& model, const HeadTrial& trial) {
  const uint64_t keys = trial.mass_of_top_k.has_value() ? 0 : uint64_t{trial.position} + 1;
  return keys * static_cast<uint64_t>(model.head_dim) * DtypeBytes(model.dtype);
}

void JudgeHead(const KernelTable& kernels, const SelectionModel& model, const HeadTrial& trial, SelectScratch& scratch,
               JudgeScratch& judge, HeadPartial* partial) {
  std::vector<uint32_t>& rows = judge.missed;
  rows.clear();
  const Masses masses = trial.mass_of_top_k.has_value() ? Masses{*trial.mass_of_top_k, *trial.mass_of_top_k}
                                                        : MeasureAgainstTopK(kernels, model, trial, scratch, judge);
  CorrectionAction action = DecideCorrection(*trial.spec, masses.of_attended, masses.with_top_k);
  *partial = {.mass_before = masses.of_attended,
              .mass_after = masses.of_attended,
              .o = std::move(partial->o),
              .lse = std::move(partial->lse)};
  if (action == CorrectionAction::kMissedTopK) partial->mass_after = masses.with_top_k;
  if (action == CorrectionAction::kComplement) {
    partial->mass_after = 1;
    rows.clear();
    auto next = trial.selected.begin();
    for (uint32_t j = trial.spec->sink_tokens; j < WindowStart(trial); ++j) {
      if (next != trial.selected.end() && *next == j) {
        ++next;
      } else {
        rows.push_back(j);
      }
    }
  }
  if (action == CorrectionAction::kNone) rows.clear();
  partial->o.clear();
  partial->lse.clear();
  if (rows.empty()) return;  // nothing is missing
  partial->action = action;
  partial->rows_read = static_cast<uint32_t>(rows.size());
  partial->o.resize(static_cast<size_t>(model.group_size) * model.head_dim);
  partial->lse.resize(model.group_size);
  kernels.attend_blocks(
      {.q = trial.query,
       .num_queries = model.group_size,
       .head_dim = model.head_dim,
       .scale = model.attention_scale,
       .blocks = trial.row_blocks,
       .kv_dtype = model.dtype,
       .positions = rows.data(),
       .num_rows = partial->rows_read,
       .o = partial->o.data(),
       .lse = partial->lse.data(),
       .scratch = judge.attention.Reserve(AttendBlocksScratchBytes(model.group_size, model.head_dim))});
}

}  // namespace winnow
