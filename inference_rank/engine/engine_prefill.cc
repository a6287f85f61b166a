// How prompts are computed: chunk by chunk through all layers, or layer by layer.
#include <algorithm>

#include "inference_rank/engine/engine.h"
#include "inference_rank/sequence/sequence_spans.h"

namespace winnow {
namespace {

using State = Sequence::State;
using SteadyClock = std::chrono::steady_clock;

// Shorter pieces are not worth the reading of weights.
constexpr uint32_t kLeastLayerPiece = 8;  // through one layer
constexpr uint32_t kLeastChunk = 8;       // through all of them

// Where the next piece begins.
uint32_t PiecePosition(const Sequence& sequence) {
  const PrefillArena& arena = *sequence.arena;
  return arena.by_layer() || arena.in_chunk() ? arena.layer_position : sequence.next_position;
}

}  // namespace

bool Engine::GoesByLayer(const Sequence& sequence) const {
  return sequence.arena->by_layer() || forward_.CutsChunksByLayer();
}

uint32_t Engine::LeastPiece(const Sequence& sequence) const {
  return GoesByLayer(sequence) ? kLeastLayerPiece : kLeastChunk;
}

uint32_t Engine::MostInjected(SteadyClock::time_point now) const {
  const Sequence* next = inject_controller_.has_value() ? scheduler_.NextPrefill(now) : nullptr;
  if (next == nullptr) return max_inject_tokens_;
  const uint32_t tokens = PacedTokens(*next, now);
  const uint32_t layers = GoesByLayer(*next) ? layout_.num_layers : 1;
  return std::min((tokens + layers - 1) / layers, max_inject_tokens_);
}

uint32_t Engine::PacedTokens(const Sequence& sequence, SteadyClock::time_point now) const {
  const uint32_t first = PiecePosition(sequence);
  const std::chrono::duration<double, std::micro> since_token = now - *last_step_;
  const double layers = GoesByLayer(sequence) ? 1 : layout_.num_layers;
  const uint32_t least = LeastPiece(sequence);
  const double work = inject_controller_->WorkWithin(inject_controller_->RoomUs(since_token.count()),
                                                     layers * options_.prefill_work.ThroughLayer(least, first));
  const double tokens = options_.prefill_work.WholeTokensWithin(work / layers, first);
  return tokens < least ? 0 : static_cast<uint32_t>(std::min<double>(tokens, options_.limits.prefill_chunk_tokens));
}

// In halves of token-layers: tokens, each through half a layer.
uint32_t Engine::RunPrefill(uint32_t tokens, bool paced, bool beside) {
  const uint64_t layers = layout_.num_layers, planned = 2 * tokens * layers;
  uint64_t done = 0;
  bool by_layer = false;
  while (done < planned && forward_.status().ok()) {
    const auto now = SteadyClock::now();
    Sequence* sequence = scheduler_.NextPrefill(now);
    if (sequence == nullptr) break;
    const uint32_t chunk = options_.limits.prefill_chunk_tokens;
    by_layer |= GoesByLayer(*sequence);
    const uint64_t piece_layers = GoesByLayer(*sequence) ? 1 : layers;
    uint32_t most =
        static_cast<uint32_t>(std::min<uint64_t>((planned - done + 2 * piece_layers - 1) / (2 * piece_layers), chunk));
    // A plan of whole chunks does not end within one for the last layer's sake.
    if (piece_layers == 1 && tokens >= chunk) most = chunk;
    if (paced) most = std::min(most, PacedTokens(*sequence, now));
    if (most == 0) break;
    sequence->last_chunk = now;
    ReportPrompt(*sequence, now);
    if (sequence->remote_prefix.has_value()) {
      done += RunRemotePiece(*sequence, most);
      continue;
    }
    const uint32_t first = PiecePosition(*sequence);
    const bool last_layer = piece_layers == 1 && sequence->arena->layer + 1 == layout_.num_layers;
    const uint32_t count = piece_layers > 1 ? RunChunk(*sequence, most) : RunLayerPiece(*sequence, most);
    done += 2 * count * piece_layers;
    if (paced && by_layer) forward_.SettlePrompt();
    if (beside && sequence->state != State::kPrefilling) break;
    // The prompt's end, with its logits, and the last layer, which ends with the rows, say nothing about other pieces.
    if (count == 1 || last_layer) continue;
    const std::chrono::duration<double, std::micro> taken = SteadyClock::now() - now;
    const double work = static_cast<double>(piece_layers) * options_.prefill_work.ThroughLayer(count, first);
    if (paced) inject_controller_->ObservePrefill(work, taken.count());
    if (forward_.CutsLayersAtAttention()) prefix_times_.ObservePiece(work, taken.count());
  }
  if (by_layer) forward_.SettlePrompt();
  return static_cast<uint32_t>((done + 2 * layers - 1) / (2 * layers));
}

PrefillStep& Engine::BeginPrefillStep(Sequence& sequence, uint32_t first, uint32_t count) {
  PrefillStep& step = prefill_steps_[next_step_++ % prefill_steps_.size()];
  step.Begin(sequence, first, count);
  return step;
}

uint32_t Engine::RunChunk(Sequence& sequence, uint32_t most) {
  const uint32_t first = sequence.next_position;
  const bool last = first + 1 == sequence.prompt_tokens();
  const bool scores = ScoresAt(sequence, first);
  const uint32_t count = last || scores ? 1 : std::min(most, sequence.prompt_tokens() - 1 - first);
  const TimelineSpan span(metrics_.timeline, Span::kPrefillChunk, kNoLayer, 0, 1);
  const bool followed = last && HasFollowers(sequence);
  if (last) PlanPromptDraw(sequence, followed);
  if (scores) PlanNoDraw();
  PrefillStep& step = BeginPrefillStep(sequence, first, count);
  const std::span<float> logits =
      forward_.Prefill({sequence.prompt.data() + first, count}, first, last || scores, step);
  if (scores && forward_.status().ok()) ScorePrompt(sequence, first, logits);
  sequence.next_position += count;
  if (!forward_.status().ok()) return count;
  ++metrics_.prefill_chunks;
  ++metrics_.progress;
  metrics_.prompt_tokens += count;
  if (last && sequence.failure.ok()) FinishPrompt(sequence, logits, followed);
  return count;
}

void Engine::BeginChunk(Sequence& sequence) {
  PrefillArena& arena = *sequence.arena;
  arena.layer = 0;
  arena.layer_position = arena.chunk_first = sequence.next_position;
  arena.chunk_end = std::min(sequence.next_position + options_.limits.prefill_chunk_tokens, sequence.prompt_tokens());
  std::vector<float>& residual =
      sequence.remote_prefix.has_value() ? sequence.remote_prefix->residual : chunk_residual_;
  residual.resize(static_cast<size_t>(options_.limits.prefill_chunk_tokens) * options_.limits.prefill.hidden_size);
}

std::vector<float*> Engine::ResidualsOf(Sequence& sequence, uint32_t position) {
  const PrefillArena& arena = *sequence.arena;
  if (arena.by_layer()) return arena.Residuals(position);
  std::vector<float>& residual =
      sequence.remote_prefix.has_value() ? sequence.remote_prefix->residual : chunk_residual_;
  return {residual.data() + static_cast<size_t>(position - arena.chunk_first) * options_.limits.prefill.hidden_size};
}

uint32_t Engine::LayerEnd(const Sequence& sequence) const {
  return sequence.arena->by_layer() ? sequence.prompt_tokens() : sequence.arena->chunk_end;
}

uint32_t Engine::RunLayerPiece(Sequence& sequence, uint32_t most) {
  PrefillArena& arena = *sequence.arena;
  const uint32_t prompt = sequence.prompt_tokens();
  if (!arena.by_layer() && !arena.in_chunk()) BeginChunk(sequence);
  const int layer = arena.layer;
  const uint32_t first = arena.layer_position;
  const bool last = first + 1 == prompt;
  const bool scores = layer + 1 == layout_.num_layers && ScoresAt(sequence, first);
  const uint32_t count = last || scores ? 1 : std::min(most, std::min(LayerEnd(sequence), prompt - 1) - first);
  const TimelineSpan span(metrics_.timeline, Span::kPrefillChunk, static_cast<uint16_t>(layer), 0, 1);
  const std::vector<float*> hidden = ResidualsOf(sequence, first);
  if (layer == 0) forward_.EmbedPrompt({sequence.prompt.data() + first, count}, hidden);
  PrefillStep& step = BeginPrefillStep(sequence, first, count);
  forward_.PrefillLayer(layer, first, static_cast<int>(count), last || scores, hidden, step);
  if (scores) {
    PlanNoDraw();
    const std::span<float> logits = forward_.PromptLogits(hidden);
    if (forward_.status().ok()) ScorePrompt(sequence, first, logits);
  }
  if (forward_.status().ok()) EndPiece(sequence, count);
  return count;
}

void Engine::EndPiece(Sequence& sequence, uint32_t count) {
  PrefillArena& arena = *sequence.arena;
  const bool last_layer = arena.layer + 1 == layout_.num_layers;
  ++metrics_.prefill_chunks;
  ++metrics_.progress;
  if (last_layer) {
    metrics_.prompt_tokens += count;
    sequence.next_position += count;
  }
  arena.layer_position += count;
  if (arena.layer_position < LayerEnd(sequence) || !sequence.failure.ok()) return;
  if (arena.by_layer()) FinishPromptLayer(sequence);
  if (!last_layer) {
    ++arena.layer;
    arena.layer_position = arena.chunk_first;
    if (arena.by_layer() && sequence.stored_tokens > 0) PullPrefix(sequence);
    return;
  }
  arena.chunk_end = 0;
  SendStateOfChunk(sequence);
  if (!sequence.failure.ok()) return;
  if (arena.layer_position < sequence.prompt_tokens()) return;
  const std::vector<float*> hidden = ResidualsOf(sequence, arena.layer_position - 1);
  const bool followed = HasFollowers(sequence);
  PlanPromptDraw(sequence, followed);
  const std::span<float> logits = forward_.PromptLogits(hidden);
  if (forward_.status().ok() && sequence.failure.ok()) FinishPrompt(sequence, logits, followed);
}

void Engine::FinishPromptLayer(Sequence& sequence) {
  const PrefillArena& arena = *sequence.arena;
  if (sequence.working_set.has_value()) LoadPromptLayer(layout_, arena, arena.layer, sequence);
  if (arena.layer + 1 < layout_.num_layers) return;
  const size_t residual_bytes = arena.bytes() - arena.layer_kv_bytes();
  metrics_.layered_prompts += 1;
  metrics_.layered_kv_peak_bytes = std::max<uint64_t>(metrics_.layered_kv_peak_bytes, arena.layer_kv_bytes());
  metrics_.layered_residual_peak_bytes = std::max<uint64_t>(metrics_.layered_residual_peak_bytes, residual_bytes);
  if (options_.on_prefilled_by_layer) {
    options_.on_prefilled_by_layer(sequence.prompt_tokens(), arena.layer_kv_bytes(), residual_bytes);
  }
}

bool Engine::ScoresAt(const Sequence& sequence, uint32_t position) const {
  return sequence.prompt_scores.has_value() && position + 1 < sequence.prompt_tokens();
}

void Engine::ScorePrompt(Sequence& sequence, uint32_t position, std::span<const float> logits) {
  const uint32_t scored = position + 1;
  sequence.prompt_scores->Add(scored, sequence.prompt[scored], logits);
  std::optional<v1::DispatchResponse::PromptTokens> batch =
      sequence.prompt_scores->TakeBatch(/*last=*/scored + 1 == sequence.prompt_tokens());
  if (!batch.has_value()) return;
  v1::DispatchResponse event;
  event.set_request_id(sequence.request_id);
  *event.mutable_prompt_tokens() = *std::move(batch);
  sequence.sink->Send(std::move(event));
}

void Engine::PlanNoDraw() {
  if (!forward_.DrawsTokens()) return;
  draws_.assign(1, std::nullopt);
  forward_.PlanDraws(draws_);
}

void Engine::PlanPromptDraw(Sequence& sequence, bool followed) {
  if (!forward_.DrawsTokens()) return;
  draws_.assign(1, followed ? std::nullopt : DrawFor(sequence, sequence.prompt_tokens() - 1));
  forward_.PlanDraws(draws_);
}

void Engine::FinishPrompt(Sequence& sequence, std::span<float> logits, bool followed) {
  if (followed) {
    sequence.prompt_logits.assign(logits.begin(), logits.end());
    sequence.prompt_end = SteadyClock::now();
  }
  using Seconds = std::chrono::duration<double>;
  metrics_.queue_seconds.Observe(Seconds(sequence.running_since - sequence.waiting_since).count());
  metrics_.prefill_seconds.Observe(Seconds(SteadyClock::now() - sequence.running_since).count());
  sequence.remote_prefix.reset();
  if (sequence.spans) sequence.spans->PromptEnds();
  if (sequence.hand_over) {
    BeginHandOver(sequence);
  } else {
    // Another one may have computed the same prompt meanwhile.
    if (MayShareRows(sequence)) ShareResident(sequence);
    if (!sequence.arena->by_layer()) LoadPrompt(layout_, *sequence.arena, sequence);
    if (MayShareRows(sequence)) KeepRows(sequence, sequence.prompt_tokens() - 1);
    GiveBackArena(sequence);
    BecomeDecoding(sequence, sequence.prompt_tokens());
  }
  if (sequence.generated.empty()) TakeToken(sequence, Drawn(0), logits);
  HandOverIfStored(sequence);
}

}  // namespace winnow
