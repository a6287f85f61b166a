#pragma once
#include <cstddef>

#include "kernels/kernel_table.h"

// Causal attention of a chunk: the driver spreads (kv head, block of queries) over the team. A query sees the same key
// tiles, aligned to absolute positions, whatever chunk or block it is in.

namespace winnow {

struct PrefillMicro {
  // Queries of one work item.
  int (*block_queries)(const PrefillAttentionParams& params) = nullptr;
  // Scratch of one worker.
  size_t (*scratch_bytes)(const PrefillAttentionParams& params) = nullptr;
  // Queries [begin, end) of the chunk, all heads of the kv head's group; end - begin <= block_queries.
  void (*block)(const PrefillAttentionParams& params, int kv_head, int begin, int end, void* scratch) = nullptr;
};

void RunPrefillAttention(Executor& executor, const PrefillAttentionParams& params, const PrefillMicro& micro);

}  // namespace winnow
