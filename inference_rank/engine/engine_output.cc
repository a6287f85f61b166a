// What becomes of a step's draws and logits: tokens, and the end of an answer with its figures.
#include <algorithm>
#include <chrono>
#include <utility>

#include "inference_rank/engine/engine.h"
#include "inference_rank/sequence/sequence_spans.h"

namespace winnow {

std::optional<uint32_t> Engine::Drawn(int row) const {
  if (!forward_.DrawsTokens() || !draws_[row].has_value()) return std::nullopt;
  return forward_.drawn_token(row);
}

std::optional<TokenDraw> Engine::DrawFor(const Sequence& sequence, uint32_t position) const {
  const bool is_known = position + 1 < sequence.known_tokens();
  if (!is_known && (sequence.top_logprobs.has_value() || IsRestricted(sequence, position))) return std::nullopt;
  return DrawAlongside(sequence, position);
}

std::optional<TokenDraw> Engine::DrawAlongside(const Sequence& sequence, uint32_t position) const {
  // A known token that is computed again: whatever is drawn is dropped.
  if (position + 1 < sequence.known_tokens()) return TokenDraw();
  return sequence.sampler->DrawOf(position + 1 - sequence.prompt_tokens());
}

bool Engine::IsRestricted(const Sequence& sequence, uint32_t position) const {
  return position + 1 >= sequence.known_tokens() && sequence.filter->Restricts(position + 1 - sequence.prompt_tokens());
}

absl::Status Engine::FillMask(Sequence& sequence, uint32_t position, uint32_t vocab_size, std::span<uint64_t> mask) {
  const auto start = std::chrono::steady_clock::now();
  absl::Status filled = sequence.filter->FillMask(mask, vocab_size, position + 1 - sequence.prompt_tokens());
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  metrics_.token_filter_seconds.Observe(taken.count());
  return filled;
}

void Engine::BeginSampling(Sequence& sequence) {
  const auto& stops = sequence.stopping.stop_token_ids();
  std::vector<uint32_t> ends(stops.begin(), stops.end());
  if (!sequence.stopping.ignore_eos()) {
    ends.insert(ends.end(), options_.eos_token_ids.begin(), options_.eos_token_ids.end());
  }
  sequence.sampler.emplace(sequence.sampling_params, sequence.prompt);
  sequence.filter.emplace(sequence.sampling_params, std::move(ends), sequence.grammar);
  for (const uint32_t id : sequence.generated) {
    sequence.sampler->Observe(id);
    sequence.filter->Observe(id);
  }
}

void Engine::TakeToken(Sequence& sequence, std::optional<uint32_t> drawn, std::span<float> logits) {
  const uint32_t index = static_cast<uint32_t>(sequence.generated.size());
  uint32_t id = 0;
  if (sequence.top_logprobs.has_value()) logits_copy_.assign(logits.begin(), logits.end());
  if (drawn.has_value()) {
    id = *drawn;
  } else {
    if (sequence.filter->Restricts(index)) {
      const auto start = std::chrono::steady_clock::now();
      if (const absl::Status filtered = sequence.filter->Apply(logits, index); !filtered.ok()) {
        return sequence.Fail(filtered, /*can_retry=*/false);
      }
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
      metrics_.token_filter_seconds.Observe(taken.count());
    }
    id = sequence.sampler->Sample(logits, index);
  }
  sequence.sampler->Observe(id);
  sequence.filter->Observe(id);
  sequence.generated.push_back(id);
  ++metrics_.generation_tokens;
  failures_.Succeeded();

  v1::Token token;
  token.set_id(id);
  if (sequence.top_logprobs.has_value()) {
    FillLogprobs(logits_copy_, *sequence.top_logprobs, &token);
    sequence.with_logprobs.resize(index);
    sequence.with_logprobs.push_back(token);
  }
  if (sequence.trace) {
    if (std::optional<v1::SelectionTrace> trace = sequence.trace->Take()) *token.mutable_trace() = *std::move(trace);
  }
  ReportTokens(sequence, index, {&token, 1});

  if (const auto end = EndOf(sequence)) FinishSequence(sequence, *end);
}

std::optional<v1::FinishReason> Engine::EndOf(const Sequence& sequence) const {
  if (sequence.filter->is_complete()) return v1::FINISH_REASON_STOP;
  if (sequence.generated.empty()) return std::nullopt;
  const uint32_t last = sequence.generated.back();
  const auto& eos = options_.eos_token_ids;
  const auto& stops = sequence.stopping.stop_token_ids();
  const bool stopped = (!sequence.stopping.ignore_eos() && std::find(eos.begin(), eos.end(), last) != eos.end()) ||
                       std::find(stops.begin(), stops.end(), last) != stops.end();
  if (stopped) return v1::FINISH_REASON_STOP;
  if (sequence.generated.size() >= sequence.stopping.max_tokens()) return v1::FINISH_REASON_LENGTH;
  return std::nullopt;
}

void Engine::ReportPrompt(Sequence& sequence, std::chrono::steady_clock::time_point now) {
  if (!sequence.prompt_report.has_value() || !sequence.generated.empty() || !sequence.prompt_report->IsDue(now)) return;
  v1::DispatchResponse event;
  event.set_request_id(sequence.request_id);
  event.mutable_prompt_progress()->set_computed_tokens(
      ComputedPromptTokens(*sequence.arena, layout_.num_layers, sequence.next_position, sequence.stored_tokens));
  event.mutable_prompt_progress()->set_cached_tokens(sequence.cached_tokens);
  sequence.sink->Send(std::move(event));
}

void Engine::ReportTokens(Sequence& sequence, uint32_t first_index, std::span<const v1::Token> tokens) {
  v1::DispatchResponse event;
  event.set_request_id(sequence.request_id);
  event.mutable_tokens()->set_first_index(first_index);
  event.mutable_tokens()->set_cached_prompt_tokens(sequence.cached_tokens);
  event.mutable_tokens()->mutable_tokens()->Assign(tokens.begin(), tokens.end());
  sequence.sink->Send(std::move(event));
}

v1::SelectionStats Engine::Stats(const Sequence& sequence) const {
  v1::SelectionStats stats;
  if (sequence.mass.count() > 0) {
    stats.set_captured_mass_mean(static_cast<float>(sequence.mass.mean()));
    stats.set_captured_mass_p5(static_cast<float>(sequence.mass.percentile(0.05)));
  }
  if (WaitsForVerification(sequence.spec)) {
    if (sequence.mass_before.count() > 0) {
      stats.set_captured_mass_before_mean(static_cast<float>(sequence.mass_before.mean()));
      stats.set_captured_mass_before_p5(static_cast<float>(sequence.mass_before.percentile(0.05)));
    }
    stats.set_missed_top_k_corrections(sequence.missed_top_k_corrections);
    stats.set_widened_corrections(sequence.widened_corrections);
    stats.set_correction_rows(sequence.correction_rows);
  }
  stats.set_captured_mass_is_bound(sequence.mass_is_bound);
  stats.set_selection_lookups(sequence.selection_lookups);
  stats.set_selection_hits(sequence.selection_hits);
  stats.set_streamed_rows(sequence.streamed_rows);
  stats.set_streamed_bytes(sequence.streamed_bytes);
  stats.set_prefetched_rows(sequence.prefetched_rows);
  stats.set_context_tokens(sequence.known_tokens());
  if (sequence.working_set.has_value()) {
    const uint64_t resident = sequence.working_set->resident_rows() / sequence.working_set->num_lists();
    stats.set_resident_rows(static_cast<uint32_t>(std::min<uint64_t>(resident, sequence.known_tokens())));
  }
  stats.set_reattach_count(sequence.attach ? 1 : 0);
  stats.set_preempted_count(sequence.preempted_count);
  stats.set_decode_steps(sequence.decode_steps);
  return stats;
}

void Engine::FinishSequence(Sequence& sequence, v1::FinishReason reason) {
  v1::DispatchResponse event;
  event.set_request_id(sequence.request_id);
  event.mutable_finished()->set_reason(reason);
  *event.mutable_finished()->mutable_stats() = Stats(sequence);
  if (sequence.spans) {
    sequence.spans->End(sequence, event.finished().stats(), reason == v1::FINISH_REASON_STOP ? "stop" : "length");
  }
  sequence.sink->Send(std::move(event));
  sequence.cancelled = true;  // nothing more to say; ReapSequences takes it out
}

}  // namespace winnow
