#include "router/generation/answer_length.h"

#include <algorithm>

#include "common/base/kv_layout.h"

namespace winnow {

uint32_t DefaultMaxTokens(size_t prompt_tokens, const SelectionSpec& selection, const ServedModel& model) {
  const auto prompt = static_cast<uint32_t>(prompt_tokens);
  const uint32_t left = std::min(model.max_context_tokens - prompt, model.max_default_answer_tokens);
  uint64_t stored = model.max_stored_positions;
  if (stored == 0) return left;
  // Bounds of pages, and cuboids, go into blocks of their own: at most two entries to a page.
  if (selection.scorer != Scorer::kToken && !IsDense(selection)) {
    const uint64_t blocks = stored / kBlockTokens * selection.page_tokens / (selection.page_tokens + 2);
    stored = (blocks - std::min<uint64_t>(blocks, 2)) * kBlockTokens;
  }
  return stored <= prompt ? left : static_cast<uint32_t>(std::min<uint64_t>(left, stored - prompt));
}

}  // namespace winnow
