#pragma once
#include <cstddef>

#include "common/base/kv_layout.h"

namespace winnow {

// Where `parts` memories hold a model's KV, each the same number of kv heads, in order: the one that has a list's, or a
// kv head's.
inline int PartOf(const KvLayout& layout, size_t list, int parts) {
  return static_cast<int>(list % layout.num_kv_heads) / (layout.num_kv_heads / parts);
}

// Lists of each of these memories.
inline size_t ListsOfPart(const KvLayout& layout, int parts) {
  return layout.num_lists() / static_cast<size_t>(parts);
}

}  // namespace winnow
