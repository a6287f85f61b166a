#pragma once
#include <algorithm>
#include <cstdint>

#include "common/selection/selection_spec.h"

namespace winnow {

// The specification for a model whose own indexer takes `top_k` positions, 0 where it brings none: where the indexer
// selects there are no sinks, and no more rows than the model was trained with. Others stay as they are.
inline SelectionSpec WithIndexer(SelectionSpec spec, uint32_t top_k) {
  if (!SelectsFromAll(spec) || top_k == 0) return spec;
  spec.sink_tokens = 0;
  spec.budget_tokens = std::min(spec.budget_tokens, top_k);
  return spec;
}

}  // namespace winnow
