#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>

#include "inference_rank/memory/prefill_arena.h"

namespace winnow {

// When a request that asks how far its prompt is hears of it: as its prompt begins, and then a few times a second.
class PromptReport {
 public:
  using Clock = std::chrono::steady_clock;

  // True when there is something to say again, which the caller then says.
  bool IsDue(Clock::time_point now) {
    if (now < next_) return false;
    next_ = now + kInterval;
    return true;
  }

 private:
  static constexpr std::chrono::milliseconds kInterval{250};
  Clock::time_point next_{};
};

// Of the prompt's tokens, those that need not be computed any more. Tokens of a prompt, or of a chunk, that goes layer
// by layer count by the share of the layers that they have gone through. `next_position`: below it all is computed,
// where nothing is under way by layer; `first_token`: of those that are computed here, the first.
inline uint32_t ComputedPromptTokens(const PrefillArena& arena, int num_layers, uint32_t next_position,
                                     uint32_t first_token) {
  if (!arena.by_layer() && !arena.in_chunk()) return next_position;
  const uint32_t first = arena.by_layer() ? first_token : arena.chunk_first;
  const uint32_t end = arena.by_layer() ? arena.prompt_tokens() : arena.chunk_end;
  const uint64_t layers_of_tokens =
      static_cast<uint64_t>(arena.layer) * (end - first) + (std::max(arena.layer_position, first) - first);
  return first + static_cast<uint32_t>(layers_of_tokens / num_layers);
}

}  // namespace winnow
