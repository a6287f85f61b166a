#include "inference_rank/step/step_loop.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "common/base/check.h"
#include "common/selection/selection_spec.h"

namespace winnow {

StepLoop::StepLoop(StepClient& client, StepRowsSender sender, const KvLayout& layout, Callbacks callbacks,
                   InferenceRankMetrics& metrics)
    : client_(client),
      sender_(std::move(sender)),
      layout_(layout),
      callbacks_(std::move(callbacks)),
      metrics_(metrics),
      holders_(client.max_rows()) {}

StepLoop::Admission StepLoop::Admit(Sequence& sequence) {
  if (sequence.step_row >= 0) return Admission::kHasRow;
  // Steps here say nothing of what they attend to.
  if (!sequence.working_set->is_by_position() || sequence.trace) return Admission::kByFrames;
  const Admission none = sequence.selects_in_place() ? Admission::kWaits : Admission::kByFrames;
  const auto free = std::find(holders_.begin(), holders_.end(), nullptr);
  if (free == holders_.end()) return none;
  const int row = static_cast<int>(free - holders_.begin());
  const std::vector<uint32_t> pages = sequence.working_set->PagesOfLists(WholeModel(layout_), client_.pages_per_list());
  const absl::Status taken = client_.SetRow(row, {.spec = &sequence.spec,
                                                  .pages = pages,
                                                  .staging = sequence.working_set->staging_pages(),
                                                  .position = sequence.next_position,
                                                  .indexed_positions = sequence.working_set->indexed_positions(),
                                                  .max_positions = sequence.max_positions,
                                                  .prompt_tokens = sequence.prompt_tokens(),
                                                  .past_queries = sequence.past_queries});
  if (absl::IsResourceExhausted(taken)) return none;
  if (!taken.ok()) {
    sequence.Fail(taken, /*can_retry=*/false);
    return Admission::kWaits;
  }
  sequence.past_queries = {};
  *free = &sequence;
  ++num_sequences_;
  sequence.step_row = row;
  return Admission::kHasRow;
}

void StepLoop::KeepPast(Sequence& sequence) {
  if (sequence.step_row < 0) return;
  sequence.past_queries = client_.PastQueries(sequence.step_row, sequence.next_position);
}

void StepLoop::Leave(Sequence& sequence) {
  if (sequence.step_row < 0) return;
  steps_.Forget(sequence);
  client_.ClearRow(sequence.step_row);
  holders_[sequence.step_row] = nullptr;
  --num_sequences_;
  sequence.step_row = -1;
}

std::optional<StepRow> StepLoop::NextRow(const Sequence& sequence) const {
  std::optional<StepRow> next = steps_.NextOf(sequence);
  if (!next.has_value()) return std::nullopt;
  next->row = sequence.step_row;
  next->draw = callbacks_.draw_for(sequence, next->position);
  next->wants_logits = sequence.top_logprobs.has_value();
  return next;
}

bool StepLoop::Turn(std::span<Sequence* const> rows) {
  while (steps_.size() >= StepClient::kMaxStepsUnderWay || (awaits_draw_ && !CanDraw())) Complete();
  if (CanDraw()) Draw();
  const size_t before = steps_.size();
  Launch(rows);
  const bool launched = steps_.size() > before;
  if (before > 0) Complete();
  if (awaits_draw_) Draw();
  return launched || before > 0;
}

void StepLoop::Poll(std::span<Sequence* const> rows) {
  if (!steps_.empty() && !CanDraw() && client_.HasEnded()) Complete();
  if (CanDraw()) Draw();
  if (awaits_draw_ || steps_.size() >= StepClient::kMaxStepsUnderWay) return;
  const uint64_t before = num_steps_;
  Launch(rows);
  metrics_.local_steps_beside_prompts += num_steps_ - before;
  if (CanDraw()) Draw();
}

void StepLoop::Drain() {
  while (!steps_.empty()) {
    if (CanDraw()) Draw();
    Complete();
  }
}

void StepLoop::Launch(std::span<Sequence* const> rows) {
  planned_.clear();
  bool awaits_draw = false;
  StepsUnderWay::Step step{.number = num_steps_ + 1, .rows = {}};
  for (Sequence* sequence : rows) {
    if (sequence->step_row < 0) continue;  // it has left
    const std::optional<StepRow> next = NextRow(*sequence);
    if (!next.has_value()) continue;
    planned_.push_back(*next);
    const bool is_restricted = next->draw.has_value() && callbacks_.is_restricted(*sequence, next->position);
    awaits_draw |= is_restricted;
    step.rows.push_back({.sequence = sequence,
                         .row = next->row,
                         .position = next->position,
                         .is_drawn = next->draw.has_value(),
                         .is_restricted = is_restricted,
                         .has_logits = next->wants_logits});
  }
  if (planned_.empty()) return;
  const TimelineSpan span(metrics_.timeline, Span::kLaunchStep, kNoLayer, step.number,
                          static_cast<uint32_t>(planned_.size()));
  client_.Plan(planned_);
  if (!client_.Launch().ok()) return;  // the device's failure, which ends the rank
  ++num_steps_;
  steps_.Add(std::move(step));
  awaits_draw_ = awaits_draw;
  if (!awaits_draw_) Draw();
}

void StepLoop::Draw() {
  awaits_draw_ = false;
  masked_rows_.clear();
  for (const StepsUnderWay::Row& of : steps_.newest().rows) {
    if (!of.is_restricted || !of.is_wanted()) continue;
    WINNOW_CHECK(of.sequence->known_tokens() == of.position + 1);
    const absl::Status filled =
        callbacks_.fill_mask(*of.sequence, of.position, client_.vocab_size(), client_.token_mask(of.row));
    if (filled.ok()) {
      masked_rows_.push_back(of.row);
    } else {
      of.sequence->Fail(filled, /*can_retry=*/false);
    }
  }
  (void)client_.Draw(masked_rows_);  // an error is the device's failure, which ends the rank
}

void StepLoop::Complete() {
  const StepsUnderWay::Step step = steps_.TakeOldest();
  const auto num_rows = static_cast<uint32_t>(step.rows.size());
  {
    const TimelineSpan span(metrics_.timeline, Span::kAwaitStep, kNoLayer, step.number, num_rows);
    const auto start = std::chrono::steady_clock::now();
    const absl::Status completed = client_.Complete();
    const auto waited = std::chrono::steady_clock::now() - start;
    metrics_.local_step_wait_us += std::chrono::duration_cast<std::chrono::microseconds>(waited).count();
    if (!completed.ok()) return;  // likewise
  }
  const TimelineSpan span(metrics_.timeline, Span::kFinishStep, kNoLayer, step.number, num_rows);
  ++metrics_.decode_steps;
  ++metrics_.local_steps;
  ++metrics_.progress;
  sent_.clear();
  for (const StepsUnderWay::Row& of : step.rows) {
    if (!of.is_wanted()) {
      ++metrics_.local_rows_dropped;
      continue;
    }
    if (of.position < of.sequence->watermark) continue;  // computed again for what it selects
    sent_.push_back({.sequence = of.sequence,
                     .position = of.position,
                     .token_id = of.sequence->token_at(of.position),
                     .kv_rows = client_.kv_rows(of.row)});
  }
  // First, because what a token brings about (its sequence's end) may need the rows there.
  if (!sent_.empty()) sender_.Send(sent_);
  for (const StepsUnderWay::Row& of : step.rows) {
    if (of.is_wanted()) TakeRow(of);
  }
}

void StepLoop::TakeRow(const StepsUnderWay::Row& of) {
  Sequence& sequence = *of.sequence;
  WINNOW_CHECK(of.position == sequence.next_position);
  CountSelection(sequence, of);
  const bool selects = sequence.selects_in_place() && of.position >= sequence.spec.dense_below_tokens;
  if (selects) sequence.working_set->SetIndexed();
  ++sequence.next_position;
  ++sequence.decode_steps;
  if (sequence.next_position != sequence.known_tokens()) return;
  const std::span<float> logits = of.is_drawn && !of.has_logits ? std::span<float>() : client_.logits(of.row);
  callbacks_.take_token(sequence, of.is_drawn ? std::optional(client_.drawn_token(of.row)) : std::nullopt, logits);
}

// Lists that attend to everything hold all of the mass.
void StepLoop::CountSelection(Sequence& sequence, const StepsUnderWay::Row& of) {
  const SelectionSpec& spec = sequence.spec;
  const uint64_t lists = layout_.num_lists();
  uint64_t dense = 0;
  if (spec.head_budgets.empty()) {
    dense = sequence.working_set->AttendsEverything(0, of.position) ? lists : 0;
  } else {
    for (size_t list = 0; list < lists; ++list) dense += sequence.working_set->AttendsEverything(list, of.position);
  }
  sequence.attended_rows += dense * (of.position + 1);
  if (dense > 0) sequence.mass.Add(1.0, dense);
  if (dense > 0 && IsDense(spec)) sequence.mass_before.Add(1.0, dense);
  if (dense == lists) return;
  const StepSelection selection = client_.selection(of.row);
  for (size_t i = 0; i < selection.captured_masses.size(); ++i) {
    if (std::isnan(selection.captured_masses[i])) continue;
    sequence.mass.Add(selection.captured_masses[i]);
    metrics_.captured_mass[i / layout_.num_kv_heads].Observe(selection.captured_masses[i]);
  }
  if (!selection.captured_masses.empty()) sequence.selected_rows_of_step = selection.selected_rows;
  if (!sequence.working_set->staging_pages().empty()) {
    const uint64_t hits = selection.selected_rows - std::min(selection.selected_rows, selection.fetched_rows);
    sequence.selection_lookups += selection.selected_rows;
    sequence.selection_hits += hits;
    metrics_.selection_lookups += selection.selected_rows;
    metrics_.selection_hits += hits;
  }
  const uint32_t window_start = RecentStart(of.position, spec.recent_tokens, spec.sink_tokens, kBlockTokens);
  sequence.attended_rows +=
      sequence.selected_rows_of_step + (lists - dense) * (spec.sink_tokens + of.position + 1 - window_start);
}

}  // namespace winnow
