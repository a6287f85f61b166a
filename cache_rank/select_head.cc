#include "cache_rank/select_head.h"

#include <algorithm>
#include <limits>

#include "cache_rank/policy/top_k.h"
#include "cache_rank/scorer/captured_mass.h"
#include "common/base/check.h"
#include "common/base/kv_layout.h"

namespace winnow {
namespace {

uint32_t WindowStart(const SelectionSpec& spec, uint32_t position) {
  return RecentStart(position, spec.recent_tokens, spec.sink_tokens, kBlockTokens);
}

}  // namespace

uint64_t ScoredKeyBytes(const SelectionModel& model, const HeadQuestion& question) {
  return uint64_t{question.position} * model.head_dim * DtypeBytes(model.dtype);
}

float SelectHead(const KernelTable& kernels, const SelectionModel& model, const HeadQuestion& question,
                 SelectScratch& scratch, std::vector<uint32_t>* selected) {
  const SelectionSpec& spec = *question.spec;
  const uint32_t position = question.position;
  const int group = model.group_size;
  const size_t group_floats = static_cast<size_t>(group) * model.head_dim;
  const bool measures_itself = question.measured != nullptr && question.measured_position == position;
  const bool measures_previous = question.measured != nullptr && !measures_itself;
  WINNOW_CHECK(!measures_previous || question.measured_position + 1 == position);

  // Prediction and real query are stacked, so that the keys are read once for both.
  float* queries = scratch.queries.Reserve(2 * group_floats);
  if (question.target != nullptr) {
    std::copy_n(question.target, group_floats, queries);
  } else {
    PredictFromPast(kernels, model.rope, spec, *question.ring, position, question.first_query_head, group,
                    model.head_dim, queries);
  }
  if (measures_previous) std::copy_n(question.measured, group_floats, queries + group_floats);

  // The position's own row has no say in its selection, even where its mass is measured.
  const KeyTable keys{question.tiles, position, model.head_dim, model.dtype};
  const bool sums_softmaxes = spec.group_aggregation == GroupAggregation::kSoftmaxSum;
  Softmaxes softmaxes;
  if (sums_softmaxes || question.measured != nullptr) {
    softmaxes = SoftmaxKeys(kernels, keys, queries, measures_previous ? 2 * group : group, model.attention_scale,
                            scratch.softmax);
  }
  float mass = std::numeric_limits<float>::quiet_NaN();
  if (measures_previous) {
    const uint32_t previous = question.measured_position;
    mass = CapturedMass(softmaxes.Slice(group, group), /*own_scores=*/nullptr,
                        {spec.sink_tokens, *selected, WindowStart(spec, previous), previous});
  }
  const uint32_t first = spec.sink_tokens, last = WindowStart(spec, position);
  float* importance = scratch.importance.Reserve(last);
  if (sums_softmaxes) {
    SumSoftmaxes(kernels, softmaxes.Slice(0, group), first, last, importance);
  } else {
    const Scores scores = ScoreKeys(kernels, keys, queries, group, model.attention_scale, scratch.scores);
    AggregateScores(spec.group_aggregation, scores, group, first, last, importance);
  }
  SelectTopK(kernels, importance, first, last, question.budget_tokens, scratch.top_k, selected);
  if (measures_itself) {
    const KeyTable own{question.tiles + position / kBlockTokens, position % kBlockTokens + 1, model.head_dim,
                       model.dtype};
    const Scores scores = ScoreKeys(kernels, own, queries, group, model.attention_scale, scratch.scores);
    float* own_scores = scratch.queries.Reserve(group);
    for (int i = 0; i < group; ++i) own_scores[i] = scores.row(i)[position % kBlockTokens];
    mass = CapturedMass(softmaxes.Slice(0, group), own_scores, {spec.sink_tokens, *selected, last, position});
  }
  return mass;
}

}  // namespace winnow
