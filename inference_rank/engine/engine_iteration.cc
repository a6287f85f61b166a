// An iteration of the engine: pieces of prompts, and steps of the sequences that decode.
#include <algorithm>

#include "inference_rank/engine/engine.h"

namespace winnow {
namespace {

using SteadyClock = std::chrono::steady_clock;

}  // namespace

void Engine::DrainSteps(Together together) {
  if (together == Together::kStepsAlone) return;
  if (step_loop_.has_value() && together == Together::kInTurn) step_loop_->Drain();
  DrainPeerSteps();
}

// A target for the time between tokens is met by pieces of prompts that are cut for it.
Engine::Together Engine::WaysOf(const Scheduler::Iteration& plan) {
  if (plan.prefill_tokens == 0) return Together::kStepsAlone;
  if (!step_loop_.has_value() || !forward_.RunsBesideSteps() || inject_controller_.has_value()) {
    return Together::kInTurn;
  }
  SortRows(plan.rows);
  return local_batch_.empty() ? Together::kInTurn : Together::kBeside;
}

bool Engine::RunIteration() {
  AskForBatchRows();
  const auto start = SteadyClock::now();
  if (!last_step_.has_value()) last_step_ = start;
  const uint32_t most = MostInjected(start);
  metrics_.max_inject_tokens = most;
  const Scheduler::Iteration plan = scheduler_.Plan(most, start);
  const Together together = WaysOf(plan);
  DrainSteps(together);
  if (together == Together::kBeside) forward_.RunBesideSteps([this] { step_loop_->Poll(local_batch_); });
  const uint32_t prefilled = RunPrefill(plan.prefill_tokens, inject_controller_.has_value() && !plan.rows.empty(),
                                        together == Together::kBeside);
  if (together == Together::kBeside) forward_.RunBesideSteps(nullptr);
  if (!forward_.status().ok()) return true;
  const auto prefill_end = SteadyClock::now();
  const bool decoded = RunDecodeStep(plan.rows, together);
  DrainSteps(together);
  if (!decoded) {
    last_step_.reset();
    return prefilled > 0;
  }
  metrics_.injected_tokens += prefilled;
  last_step_ = SteadyClock::now();
  if (inject_controller_.has_value()) {
    const std::chrono::duration<double, std::micro> step = *last_step_ - prefill_end;
    inject_controller_->ObserveDecode(step.count(), scheduler_.NextPrefill(*last_step_) != nullptr);
  }
  return true;
}

void Engine::SortRows(std::span<Sequence* const> planned) {
  batch_.clear();
  peer_batch_.clear();
  local_batch_.clear();
  for (Sequence* sequence : planned) {
    // Prefill makes frames arrive, which can fail a sequence, and steps under way may have ended it.
    if (!sequence->failure.ok() || sequence->cancelled) continue;
    if (sequence->peer_state == Sequence::PeerState::kInBatch) {
      peer_batch_.push_back(sequence);
      continue;
    }
    using Admission = StepLoop::Admission;
    const Admission admission = step_loop_.has_value() ? step_loop_->Admit(*sequence) : Admission::kByFrames;
    if (admission == Admission::kHasRow) local_batch_.push_back(sequence);
    if (admission == Admission::kByFrames) batch_.push_back(sequence);
  }
}

bool Engine::RunDecodeStep(std::span<Sequence* const> planned, Together together) {
  SortRows(planned);
  // What else computes shares the activations of steps from GPU to GPU.
  const bool turned_peers = RunPeerSteps(together == Together::kStepsAlone && batch_.empty() && local_batch_.empty());
  if (!forward_.status().ok()) return true;
  for (size_t first = 0; first < batch_.size(); first += kMaxDecodeRows) {
    RunFrameStep({batch_.data() + first, std::min<size_t>(kMaxDecodeRows, batch_.size() - first)});
    if (!forward_.status().ok()) return true;
  }
  if (together == Together::kBeside) {
    step_loop_->Poll(local_batch_);
    return true;
  }
  const bool turned = step_loop_.has_value() && step_loop_->Turn(local_batch_);
  return turned || turned_peers || !batch_.empty();
}

void Engine::RunFrameStep(std::span<Sequence* const> rows) {
  const TimelineSpan span(metrics_.timeline, Span::kStep, kNoLayer, next_plan_, static_cast<uint32_t>(rows.size()));
  if (forward_.DrawsTokens()) {
    draws_.clear();
    for (const Sequence* sequence : rows) draws_.push_back(DrawFor(*sequence, sequence->next_position));
    forward_.PlanDraws(draws_);
  }
  decode_step_.Begin(next_plan_++, rows);
  const std::span<float> logits =
      forward_.DecodeByLayer(decode_step_.token_ids(), decode_step_.positions(), decode_step_);
  decode_step_.Finish();
  if (!forward_.status().ok()) return;
  // Before its tokens are sent: who has an answer finds its steps counted.
  ++metrics_.decode_steps;
  ++metrics_.progress;
  const size_t vocab = logits.size() / rows.size();
  for (size_t row = 0; row < rows.size(); ++row) {
    Sequence& sequence = *rows[row];
    if (sequence.failure.ok() && sequence.next_position == sequence.known_tokens()) {
      TakeToken(sequence, Drawn(static_cast<int>(row)), logits.subspan(row * vocab, vocab));
    }
    if (sequence.failure.ok()) SendStateOfStep(sequence);
  }
}

}  // namespace winnow
