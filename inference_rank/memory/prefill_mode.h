#pragma once
#include <cstddef>
#include <cstdint>

#include "common/base/kv_layout.h"

namespace winnow {

// In which order prefill goes over a prompt.
//   chunked   chunk by chunk through all layers: the KV of the whole prompt stays until its end
//   layered   layer by layer over all of the prompt (SparseServe, arXiv:2509.24626): one layer's KV stays, and the
//             residual of every token
//   auto      layered where the KV of the whole prompt would never fit, and on GPUs that pace prompts to a target
// The results have the same bits.
enum class PrefillMode { kAuto, kChunked, kLayered };

// How a rank's prompts in prefill use its memory for them.
struct PrefillSizing {
  PrefillMode mode = PrefillMode::kChunked;
  size_t memory_bytes = size_t{1} << 30;  // for all prompts in prefill together, of all GPUs
  uint32_t hidden_size = 0;               // of the residual, f32; where prompts may go layer by layer
  int parts = 1;                          // GPUs that share the kv heads: each has all residuals

  static size_t AllKvBytes(const KvLayout& layout, uint32_t prompt_tokens) {
    return layout.token_bytes() * prompt_tokens;
  }
  static size_t LayerKvBytes(const KvLayout& layout, uint32_t prompt_tokens) {
    return layout.token_bytes() / layout.num_layers * prompt_tokens;
  }
  static size_t ResidualBytes(uint32_t hidden_size, uint32_t prompt_tokens) {
    return sizeof(float) * hidden_size * prompt_tokens;
  }

  bool ByLayer(const KvLayout& layout, uint32_t prompt_tokens) const {
    if (mode == PrefillMode::kAuto) return AllKvBytes(layout, prompt_tokens) > memory_bytes;
    return mode == PrefillMode::kLayered;
  }
  size_t BytesNeeded(const KvLayout& layout, uint32_t prompt_tokens) const {
    return ByLayer(layout, prompt_tokens)
               ? LayerKvBytes(layout, prompt_tokens) + parts * ResidualBytes(hidden_size, prompt_tokens)
               : AllKvBytes(layout, prompt_tokens);
  }
};

}  // namespace winnow
