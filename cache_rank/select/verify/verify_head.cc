#include "cache_rank/select/verify/verify_head.h"

#include <algorithm>
#include <iterator>

#include "cache_rank/select/policy/top_k.h"
#include "cache_rank/select/scorer/captured_mass.h"
#include "common/base/kv_layout.h"
#include "common/selection/attended_set.h"

namespace winnow {
namespace {

// One call of VerifyHead that has to score the keys.
class HeadVerification {
 public:
  HeadVerification(const KernelTable& kernels, const SelectionModel& model, const HeadToVerify& head,
                   SelectScratch& scratch, VerifyScratch& verify)
      : kernels_(kernels),
        model_(model),
        head_(head),
        spec_(*head.spec),
        scratch_(scratch),
        verify_(verify),
        first_(spec_.sink_tokens),
        last_(WindowStart(spec_, head.position, head.prompt_tokens)) {}

  // Mass of A with these rows for Sel.
  double Mass(const std::vector<uint32_t>& rows) const { return Mass(std::span<const uint32_t>(rows)); }
  double Mass(std::span<const uint32_t> rows) const {
    return CapturedMassInDouble(softmaxes_, verify_.own_scores.data(), {first_, rows, last_, head_.position});
  }
  uint32_t num_missed() const { return last_ - first_ - static_cast<uint32_t>(head_.selected.size()); }

  void ScoreKeys();
  void RankRows();
  // What A lacks of the top-k.
  void ListMissedTopK(std::vector<uint32_t>* rows);
  // The fewest rows that bring `mass`, that of A, to `wanted`.
  void ListFewest(double mass, double wanted, std::vector<uint32_t>* rows);

 private:
  KeyTable KeysBefore() const { return head_.index.Keys(head_.position, model_.head_dim); }

  const KernelTable& kernels_;
  const SelectionModel& model_;
  const HeadToVerify& head_;
  const SelectionSpec& spec_;
  SelectScratch& scratch_;
  VerifyScratch& verify_;
  const uint32_t first_, last_;  // selectable rows
  Softmaxes softmaxes_;          // over rows [0, position)
  const float* importance_ = nullptr;
};

void HeadVerification::ScoreKeys() {
  const uint32_t position = head_.position;
  const int group = model_.group_size;
  const KeyTable own =
      head_.index.Keys(position % kBlockTokens + 1, model_.head_dim, /*first_block=*/position / kBlockTokens);
  const Scores scores = winnow::ScoreKeys(kernels_, own, head_.query, group, model_.score_form(), scratch_.scores);
  verify_.own_scores.resize(group);
  for (int i = 0; i < group; ++i) verify_.own_scores[i] = scores.row(i)[position % kBlockTokens];
  softmaxes_ = SoftmaxKeys(kernels_, KeysBefore(), head_.query, group, model_.score_form(), scratch_.softmax);
  scratch_.scored_key_bytes += KeysBefore().key_bytes();
}

void HeadVerification::RankRows() {
  float* importance = scratch_.importance.Reserve(last_);
  importance_ = importance;
  if (spec_.group_aggregation == GroupAggregation::kSoftmaxSum) {
    return SumSoftmaxes(kernels_, softmaxes_, first_, last_, importance);
  }
  const int group = model_.group_size;
  const Scores scores =
      winnow::ScoreKeys(kernels_, KeysBefore(), head_.query, group, model_.score_form(), scratch_.scores);
  scratch_.scored_key_bytes += KeysBefore().key_bytes();
  AggregateScores(spec_.group_aggregation, scores, group, first_, last_, importance);
}

void HeadVerification::ListMissedTopK(std::vector<uint32_t>* rows) {
  SelectTopK(kernels_, importance_, first_, last_, head_.budget_tokens, scratch_.top_k, &verify_.top_k);
  std::set_difference(verify_.top_k.begin(), verify_.top_k.end(), head_.selected.begin(), head_.selected.end(),
                      std::back_inserter(*rows));
}

void HeadVerification::ListFewest(double mass, double wanted, std::vector<uint32_t>* rows) {
  verify_.weights.clear();
  for (int i = 0; i < model_.group_size; ++i) {
    verify_.weights.push_back((1 - OwnShare(softmaxes_.lse[i], verify_.own_scores[i])) / model_.group_size);
  }
  FewestMissedRows(kernels_,
                   {.softmaxes = softmaxes_,
                    .weights = verify_.weights,
                    .importance = importance_,
                    .first = first_,
                    .last = last_,
                    .selected = head_.selected,
                    .held = mass,
                    .target = wanted},
                   verify_.missed_rows, rows);
}

}  // namespace

void VerifyHead(const KernelTable& kernels, const SelectionModel& model, const HeadToVerify& head,
                SelectScratch& scratch, VerifyScratch& verify, HeadPartial* partial) {
  const float wanted = head.spec->min_captured_mass;
  const bool corrects = head.spec->correction == Correction::kRemote;
  const auto is_below = [&](float mass) { return wanted > 0 && !(mass >= wanted); };
  *partial = {.o = std::move(partial->o), .lse = std::move(partial->lse)};
  partial->o.clear();
  partial->lse.clear();
  if (head.mass_of_top_k.has_value() && !is_below(*head.mass_of_top_k)) {  // nothing can be missing from the top-k
    partial->mass_before = partial->mass_after = *head.mass_of_top_k;
    return;
  }
  HeadVerification verification(kernels, model, head, scratch, verify);
  verification.ScoreKeys();
  const double mass = verification.Mass(head.selected);
  partial->mass_before = partial->mass_after = std::min(static_cast<float>(mass), 1.0f);
  const bool below = is_below(partial->mass_before);
  if (!below && !corrects) return;

  verification.RankRows();
  std::vector<uint32_t>& missed_top_k = verify.missed_top_k;
  missed_top_k.clear();
  verification.ListMissedTopK(&missed_top_k);
  // Both lists are the first of the missed rows in the order of their importance: the longer one holds the other.
  const std::vector<uint32_t>* rows = &missed_top_k;
  if (below) {
    verification.ListFewest(mass, wanted, &verify.fewest);
    partial->rows_needed = static_cast<uint32_t>(verify.fewest.size());
    if (!corrects || verify.fewest.size() > missed_top_k.size()) rows = &verify.fewest;
  }
  const bool everything = rows->size() == verification.num_missed();
  if (everything) partial->mass_after = 1;
  if (rows->empty()) return;
  if (!everything) {
    verify.attended.clear();
    std::set_union(rows->begin(), rows->end(), head.selected.begin(), head.selected.end(),
                   std::back_inserter(verify.attended));
    partial->mass_after = std::min(static_cast<float>(verification.Mass(verify.attended)), 1.0f);
  }
  partial->action = rows->size() > missed_top_k.size() ? CorrectionAction::kWidened : CorrectionAction::kMissedTopK;
  verify.read_rows = rows;
  partial->rows_read = static_cast<uint32_t>(rows->size());
  partial->o.resize(static_cast<size_t>(model.group_size) * model.head_dim);
  partial->lse.resize(model.group_size);
  kernels.attend_blocks(
      {.q = head.query,
       .num_queries = model.group_size,
       .head_dim = model.head_dim,
       .scale = model.attention_scale,
       .score_cap = model.attention_softcap,
       .blocks = head.row_blocks,
       .kv_dtype = model.dtype,
       .row = model.row,
       .positions = rows->data(),
       .num_rows = partial->rows_read,
       .o = partial->o.data(),
       .lse = partial->lse.data(),
       .scratch = verify.attention.Reserve(AttendBlocksScratchBytes(model.group_size, model.head_dim))});
}

}  // namespace winnow
