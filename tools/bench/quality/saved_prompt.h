#pragma once
#include <span>
#include <vector>

#include "common/base/kv_layout.h"
#include "common/base/status.h"
#include "inference_rank/memory/prefill_arena.h"
#include "inference_rank/step/prompt_sender.h"
#include "model/transformer.h"

namespace winnow {

// A prompt after prefill: its rows, its last queries and the logits of its last token. Any number of sequences can be
// started from it.
class SavedPrompt {
 public:
  // Prefills `tokens`, in chunks. RESOURCE_EXHAUSTED when the rows do not fit memory.
  static absl::StatusOr<SavedPrompt> Prefill(Transformer& transformer, const KvLayout& layout,
                                             std::span<const uint32_t> tokens, uint32_t chunk_tokens);

  const PrefillArena& arena() const { return arena_; }
  const std::vector<float>& logits() const { return logits_; }  // [vocab_size]

  // Sends an opened sequence what its own prefill would have sent, and fills its working set.
  absl::Status HandTo(Sequence& sequence, const KvLayout& layout, PromptSender& sender) const;

 private:
  class Recorder;
  explicit SavedPrompt(PrefillArena arena) : arena_(std::move(arena)) {}

  PrefillArena arena_;
  uint32_t first_query_ = 0;
  std::vector<std::vector<float>> queries_;  // [num_layers][positions from first_query_ on, num_query_heads, head_dim]
  std::vector<float> logits_;
};

}  // namespace winnow
