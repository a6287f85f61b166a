#pragma once
#include <cstdint>
#include <vector>

#include "cache_rank/index/index_layout.h"
#include "cache_rank/select/host/select_scratch.h"
#include "kernels/kernel_table.h"

namespace winnow {

// What the model's own indexer is asked for one position: index keys of it and all before it, and what scores them.
struct IndexerQuestion {
  HeadIndex index;
  uint32_t num_keys = 0;  // the position's own is the last
  int head_dim = 0;       // of index keys
  int num_heads = 0;
  const float* queries = nullptr;  // [num_heads, head_dim], then weights [num_heads]
  uint32_t budget_tokens = 0;
};

// Replaces `selected` by the positions of the largest scores (kernels/indexer.h), ties to the lower position,
// ascending.
void SelectByIndexer(const KernelTable& kernels, const IndexerQuestion& question, SelectScratch& scratch,
                     std::vector<uint32_t>* selected);

}  // namespace winnow
