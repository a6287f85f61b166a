// How prompts are computed: chunk by chunk through all layers, or layer by layer.
#include <algorithm>

#include "inference_rank/engine.h"

namespace winnow {
namespace {

using State = Sequence::State;
using SteadyClock = std::chrono::steady_clock;

}  // namespace

// In token-layers: tokens, each through one layer.
uint32_t Engine::RunPrefill(uint32_t tokens) {
  const uint64_t layers = layout_.num_layers, planned = tokens * layers;
  uint64_t done = 0;
  while (done < planned && forward_.status().ok()) {
    const auto now = SteadyClock::now();
    Sequence* sequence = scheduler_.NextPrefill(now);
    if (sequence == nullptr) break;
    sequence->last_chunk = now;
    if (sequence->arena->by_layer()) {
      done += RunLayerChunk(*sequence, planned - done);
    } else {
      if (planned - done < layers) break;
      done += RunPrefillChunk(*sequence, static_cast<uint32_t>((planned - done) / layers)) * layers;
    }
  }
  return static_cast<uint32_t>((done + layers - 1) / layers);
}

uint32_t Engine::RunPrefillChunk(Sequence& sequence, uint32_t most) {
  const uint32_t first = sequence.next_position;
  const bool last = first + 1 == sequence.prompt_tokens();
  const uint32_t count = last ? 1 : std::min(most, sequence.prompt_tokens() - 1 - first);
  const TimelineSpan span(metrics_.timeline, Span::kPrefillChunk, kNoLayer, 0, 1);
  const bool followed = last && HasFollowers(sequence);
  if (last) PlanPromptDraw(sequence, followed);
  prefill_step_.Begin(sequence, first, count);
  const std::span<float> logits = forward_.Prefill({sequence.prompt.data() + first, count}, first, last, prefill_step_);
  sequence.next_position += count;
  if (!forward_.status().ok()) return count;
  ++metrics_.prefill_chunks;
  ++metrics_.progress;
  metrics_.prompt_tokens += count;
  if (last && sequence.failure.ok()) FinishPrompt(sequence, logits, followed);
  return count;
}

uint32_t Engine::RunLayerChunk(Sequence& sequence, uint64_t most) {
  PrefillArena& arena = *sequence.arena;
  const int layer = arena.layer;
  const uint32_t first = arena.layer_position, prompt = sequence.prompt_tokens();
  const bool last = first + 1 == prompt, last_layer = layer + 1 == layout_.num_layers;
  const uint64_t longest = std::min<uint64_t>(most, options_.limits.prefill_chunk_tokens);
  const uint32_t count = last ? 1 : static_cast<uint32_t>(std::min<uint64_t>(longest, prompt - 1 - first));
  const TimelineSpan span(metrics_.timeline, Span::kPrefillChunk, static_cast<uint16_t>(layer), 0, 1);
  if (layer == 0) forward_.EmbedPrompt({sequence.prompt.data() + first, count}, arena.hidden(first));
  prefill_step_.Begin(sequence, first, count);
  forward_.PrefillLayer(layer, first, static_cast<int>(count), last, arena.hidden(first), prefill_step_);
  if (!forward_.status().ok()) return count;
  ++metrics_.prefill_chunks;
  ++metrics_.progress;
  if (last_layer) {
    metrics_.prompt_tokens += count;
    sequence.next_position += count;
  }
  arena.layer_position += count;
  if (!last || !sequence.failure.ok()) return count;
  if (sequence.working_set.has_value()) LoadPromptLayer(layout_, arena, layer, sequence);
  if (!last_layer) {
    ++arena.layer;
    arena.layer_position = 0;
    if (sequence.cached_tokens > 0) PullPrefix(sequence);
    return count;
  }
  const size_t residual_bytes = arena.bytes() - arena.layer_kv_bytes();
  metrics_.layered_prompts += 1;
  metrics_.layered_kv_peak_bytes = std::max<uint64_t>(metrics_.layered_kv_peak_bytes, arena.layer_kv_bytes());
  metrics_.layered_residual_peak_bytes = std::max<uint64_t>(metrics_.layered_residual_peak_bytes, residual_bytes);
  if (options_.on_prefilled_by_layer) options_.on_prefilled_by_layer(prompt, arena.layer_kv_bytes(), residual_bytes);
  const bool followed = HasFollowers(sequence);
  PlanPromptDraw(sequence, followed);
  FinishPrompt(sequence, forward_.PromptLogits(arena.hidden(first)), followed);
  return count;
}

void Engine::PlanPromptDraw(Sequence& sequence, bool followed) {
  if (!forward_.DrawsTokens()) return;
  draws_.assign(1, followed ? std::nullopt : DrawFor(sequence));
  forward_.PlanDraws(draws_);
}

void Engine::FinishPrompt(Sequence& sequence, std::span<float> logits, bool followed) {
  if (followed) {
    sequence.prompt_logits.assign(logits.begin(), logits.end());
    sequence.prompt_end = SteadyClock::now();
  }
  if (sequence.hand_over) {
    BeginHandOver(sequence);
  } else {
    if (!sequence.arena->by_layer()) LoadPrompt(layout_, *sequence.arena, sequence);
    GiveBackArena(sequence);
    BecomeDecoding(sequence, sequence.prompt_tokens());
  }
  if (sequence.generated.empty()) TakeToken(sequence, Drawn(0), logits);
  HandOverIfStored(sequence);
}

}  // namespace winnow
