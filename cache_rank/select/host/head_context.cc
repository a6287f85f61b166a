#include "cache_rank/select/host/head_context.h"

#include "cache_rank/select/predictor/from_past.h"
#include "cache_rank/select/scorer/page_scorer.h"
#include "common/base/check.h"
#include "common/base/kv_layout.h"
#include "common/selection/attended_set.h"

namespace winnow {

HeadContext::HeadContext(const KernelTable& kernels, const SelectionModel& model, const HeadQuestion& question,
                         SelectScratch& scratch, size_t num_lists, float* queries, float* page_queries)
    : kernels(kernels),
      model(model),
      question(question),
      spec(*question.spec),
      scratch(scratch),
      position(question.position),
      first_row(spec.sink_tokens),
      last_row(RecentStart(question.position, spec.recent_tokens, spec.sink_tokens, kBlockTokens)),
      page_tokens(question.index.page_tokens),
      group_size(model.group_size),
      heads_per_list(model.group_size / static_cast<int>(num_lists)),
      sums_softmaxes(spec.group_aggregation == GroupAggregation::kSoftmaxSum),
      scores_every_key(ScoresEveryKey()),
      page_groups(scores_every_key || spec.scorer != Scorer::kTwoStage
                      ? PageGroups()
                      : PageGroupsOf(spec, question.budget_tokens, first_row, last_row)),
      queries(queries),
      page_queries(page_queries) {
  WINNOW_CHECK(num_lists == ListsPerHead(spec, model));
  WINNOW_CHECK(!measures_previous() || question.measured_position + 1 == position);
  WINNOW_CHECK(scores_every_key || question.index.bounds != nullptr);
}

void HeadContext::PredictQueries() const {
  const size_t floats = static_cast<size_t>(group_size) * model.head_dim;
  if (question.target != nullptr) {
    std::copy_n(question.target, floats, queries);
  } else {
    PredictFromPast(kernels, model.rope, spec, *question.ring, position, question.first_query_head, group_size,
                    model.head_dim, queries);
  }
  if (measures_previous()) std::copy_n(question.measured, floats, queries + floats);
  if (scores_every_key) return;
  PageQueries(queries, measures_previous() ? 2 * group_size : group_size, model.head_dim, page_queries);
}

KeyTable HeadContext::KeysOf(const RowGroups& groups) const {
  KeyTable keys = AllKeys();
  keys.groups = groups.groups().data();
  keys.num_keys = groups.columns();
  return keys;
}

uint32_t HeadContext::CandidateRows() const {
  return CandidateTokens(spec, question.budget_tokens);
}

bool HeadContext::ScoresEveryKey() const {
  if (spec.scorer != Scorer::kTwoStage) return spec.scorer == Scorer::kToken;
  return ScoresAllOf(spec, last_row - first_row, question.budget_tokens);
}

Softmaxes HeadContext::SoftmaxOf(const KeyTable& keys, const float* of_queries, int count,
                                 SoftmaxScratch& buffer) const {
  CountBytes(keys, keys.key_bytes());
  return SoftmaxKeys(kernels, keys, of_queries, count, model.score_form(), buffer, scratch.help);
}

Scores HeadContext::ScoresOf(const KeyTable& keys, const float* of_queries, int count,
                             ScratchBuffer<float>& buffer) const {
  CountBytes(keys, keys.key_bytes());
  return ScoreKeys(kernels, keys, of_queries, count, model.score_form(), buffer, scratch.help);
}

void HeadContext::CountBytes(const KeyTable& keys, uint64_t bytes) const {
  scratch.scored_key_bytes += bytes;
  if (keys.head_dim != model.head_dim) scratch.page_key_bytes += bytes;
}

}  // namespace winnow
