#include "cache_rank/step/head_selector.h"

#include <algorithm>

#include "cache_rank/select/host/select_by_indexer.h"
#include "cache_rank/select/host/select_union.h"
#include "common/base/kv_layout.h"

namespace winnow {
namespace {

// What is known of the mass that the position before `position` captured.
CapturedMassFigure PreviousMass(const HeadSelection& head, uint32_t position) {
  return head.mass_position + 1 == position ? head.mass : CapturedMassFigure();
}

// Keeps what a selection for `position` has measured, and returns the mass of the position before.
CapturedMassFigure TakeMass(HeadSelection& head, const HeadQuestion& question, const CapturedMassFigure& measured,
                            uint32_t position) {
  const CapturedMassFigure previous = PreviousMass(head, position);
  if (question.measured == nullptr) return previous;
  head.mass = measured;
  head.mass_position = question.measured_position;
  return question.measured_position + 1 == position ? measured : previous;
}

bool IsSparse(const BatchRow& row, int head) {
  return row.sequence->IsSparse(row.sequence->list(row.layer_index, head), row.position);
}

}  // namespace

bool HeadSelector::Measures(const CachedSequence& sequence, uint32_t position) const {
  // What an indexer selects with says nothing of attention.
  if (!measuring_.measure_captured_mass || SelectsFromAll(sequence.spec)) return false;
  return winnow::MeasuresMass(sequence.spec, position, sequence.prompt_tokens, measuring_.mass_interval);
}

HeadQuestion HeadSelector::Question(const BatchRow& row, int head) const {
  const CachedSequence& sequence = *row.sequence;
  const LayerSelection& layer = *row.layer;
  const int first_head = head * model_.group_size;
  const size_t offset = static_cast<size_t>(first_head) * model_.head_dim;
  HeadQuestion question{.spec = &sequence.spec,
                        .position = row.position,
                        .budget_tokens = layer.heads[head].growth.BudgetAt(row.position),
                        .index = sequence.kv.index(row.layer_index, head),
                        .first_query_head = first_head,
                        .measures_exactly = measuring_.measure_exactly,
                        .prompt_tokens = sequence.prompt_tokens};
  if (PredictsFromPast(sequence.spec.predictor)) {
    question.ring = &layer.queries;
  } else {
    question.target = layer.target.data() + offset;
  }
  const bool own_query = sequence.SelectsWithOwnQuery(row.layer_index);
  const uint32_t measured = own_query ? row.position : row.position - 1;
  if (WaitsForVerification(sequence.spec)) {
    if (!row.verifies || !SelectsTopKOfRows(sequence.spec)) return question;  // the verification has a pass of its own
    question.measured = question.target;
    question.measured_position = row.position;
    return question;
  }
  if (!Measures(sequence, measured)) return question;
  if (own_query) {
    if (sequence.kv.rows(row.layer_index) <= row.position) return question;
    question.measured = question.target;
    question.measured_position = row.position;
  } else if (layer.selected_position == sequence.Anchor(measured) && layer.queries.Holds(measured) &&
             sequence.IsSparse(sequence.list(row.layer_index, head), measured)) {
    question.measured = layer.queries.rotated(row.position - 1) + offset;
    question.measured_position = row.position - 1;
  }
  return question;
}

void HeadSelector::Run(BatchRow& row, int head, int worker) {
  if (!IsSparse(row, head)) return;
  const uint64_t read_before = scratch_[worker].scored_key_bytes;
  FillDelta(row, head, worker, Select(row, head, worker));
  if (row.verifies) Verify(row, head, worker);
  row.layer->heads[head].scored_key_bytes += scratch_[worker].scored_key_bytes - read_before;
}

void HeadSelector::RunTogether(std::span<BatchRow* const> rows, int head_index, int worker) {
  std::vector<UnionTask> tasks;
  std::vector<BatchRow*> asked;
  for (BatchRow* row : rows) {
    if (!IsSparse(*row, head_index)) continue;
    HeadSelection& head = row->layer->heads[head_index];
    KeepPrevious(*row, head_index);
    tasks.push_back({Question(*row, head_index), &head.selected, &head.members, {}});
    asked.push_back(row);
  }
  if (tasks.empty()) return;
  const uint64_t read_before = scratch_[worker].scored_key_bytes;
  SelectUnions(*kernels_, model_, tasks, scratch_[worker]);
  // What they read together counts for the first one.
  asked[0]->layer->heads[head_index].scored_key_bytes += scratch_[worker].scored_key_bytes - read_before;
  for (size_t i = 0; i < tasks.size(); ++i) {
    BatchRow& row = *asked[i];
    HeadSelection& head = row.layer->heads[head_index];
    FillDelta(row, head_index, worker, TakeMass(head, tasks[i].question, tasks[i].mass, row.position));
    if (!row.verifies) continue;
    const uint64_t before_verify = scratch_[worker].scored_key_bytes;
    Verify(row, head_index, worker);
    head.scored_key_bytes += scratch_[worker].scored_key_bytes - before_verify;
  }
}

void HeadSelector::KeepPrevious(BatchRow& row, int head_index) {
  if (row.sequence->spec.reuse_interval <= 1) return;
  HeadSelection& head = row.layer->heads[head_index];
  head.previous = head.selected;
  head.previous_members = head.members;
}

CapturedMassFigure HeadSelector::Select(BatchRow& row, int head_index, int worker) {
  HeadSelection& head = row.layer->heads[head_index];
  if (!row.selects()) return PreviousMass(head, row.position);
  if (SelectsFromAll(row.sequence->spec)) {
    KeepPrevious(row, head_index);
    SelectByIndexer(*kernels_,
                    {.index = row.sequence->kv.index(row.layer_index, head_index),
                     .num_keys = row.position + 1,
                     .head_dim = model_.row.index_dim,
                     .num_heads = model_.num_index_heads,
                     .queries = row.layer->target.data(),
                     .budget_tokens = HeadBudget(row.sequence->spec, row.sequence->list(row.layer_index, head_index))},
                    scratch_[worker], &head.selected);
    return {};
  }
  const HeadQuestion question = Question(row, head_index);
  KeepPrevious(row, head_index);
  const CapturedMassFigure figure =
      SelectUnion(*kernels_, model_, question, scratch_[worker], &head.selected, &head.members);
  return TakeMass(head, question, figure, row.position);
}

void HeadSelector::FillDelta(BatchRow& row, int head_index, int worker, CapturedMassFigure previous) {
  if (row.deltas[head_index] == nullptr) return;
  const CachedSequence& sequence = *row.sequence;
  HeadSelection& head = row.layer->heads[head_index];
  const size_t list = sequence.list(row.layer_index, head_index);
  HeadDelta& delta = *row.deltas[head_index];
  const SelectionSpec& spec = sequence.spec;
  if (head.residency.pool_slots() == 0) {
    const uint32_t known = IdentityRows(spec, row.position, sequence.prompt_tokens, sequence.attach_position);
    head.residency.Resize(sequence.pool_slots[list]);
    head.residency.SetIdentity(spec.sink_tokens, std::min(known, sequence.pool_slots[list]));
  }
  const uint32_t ring = wire::RingTokens(spec.recent_tokens, kBlockTokens, kSlotPageTokens);
  head.residency.Update(*kernels_, head.selected, row.position, ring, scratch_[worker].top_k, &delta);
  delta.members = head.members;
  if (spec.transfer == Transfer::kFull) HeadResidency::SendAll(head.selected, &delta);
  const RowTiers* tiers = store_->tiers();
  head.working_set.Record(delta.streamed_positions, tiers == nullptr ? 1 : tiers->admit_rows());
  // Masses of verified positions went with their verifications.
  if (WaitsForVerification(spec)) previous = {};
  delta.captured_mass = previous.mass;
  delta.captured_mass_is_bound = previous.is_lower_bound;
}

void HeadSelector::Verify(BatchRow& row, int head_index, int worker) {
  const CachedSequence& sequence = *row.sequence;
  HeadSelection& head = row.layer->heads[head_index];
  const bool with_selecting_query = row.work == SelectionWork::kSelect;
  const float* query = with_selecting_query ? row.layer->target.data() : row.layer->queries.rotated(row.position);
  HeadToVerify to_verify{.spec = &sequence.spec,
                         .position = row.position,
                         .prompt_tokens = sequence.prompt_tokens,
                         .budget_tokens = head.growth.BudgetAt(row.position),
                         .index = sequence.kv.index(row.layer_index, head_index),
                         .row_blocks = sequence.kv.row_blocks(row.layer_index, head_index),
                         .query = query + static_cast<size_t>(head_index) * model_.group_size * model_.head_dim,
                         .selected = head.selected,
                         .mass_of_top_k = {}};
  if (with_selecting_query && SelectsTopKOfRows(sequence.spec)) to_verify.mass_of_top_k = head.mass.mass;
  HeadPartial& partial = *row.partials[head_index];
  VerifyHead(*kernels_, model_, to_verify, scratch_[worker], verify_scratch_[worker], &partial);
  if (partial.rows_read > 0) {
    sequence.kv.CheckRows(row.layer_index, head_index, std::span<const uint32_t>(*verify_scratch_[worker].read_rows));
  }
  row.grew[head_index] = head.growth.Record(row.position, partial.rows_needed);
}

HeadSelector::KeyBytes HeadSelector::key_bytes() const {
  KeyBytes bytes;
  for (const SelectScratch& scratch : scratch_) {
    bytes.scored += scratch.scored_key_bytes + scratch.measured_key_bytes;
    bytes.of_pages += scratch.page_key_bytes;
    bytes.shared += scratch.shared_key_bytes;
  }
  return bytes;
}

}  // namespace winnow
