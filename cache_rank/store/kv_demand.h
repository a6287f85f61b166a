#pragma once
#include <cstddef>
#include <cstdint>

#include "cache_rank/index/index_layout.h"
#include "cache_rank/store/kv_block_pool.h"
#include "cache_rank/store/kv_retention.h"
#include "common/base/kv_layout.h"
#include "common/base/status.h"

namespace winnow {

// What a sequence takes of a pool: the arithmetic of its admission.

// What of a block of rows, and of a block of pages, is index.
IndexParts KeyParts(const KvLayout& layout, const IndexLayout& index);
IndexParts PageParts(const KvLayout& layout, const IndexLayout& index);

struct KvDemand {
  size_t blocks = 0;
  size_t index_bytes = 0;  // of the fast tier
};

// Of `positions` positions, of which the first `shared` come from another sequence. Streaming lists share nothing and
// have no index.
KvDemand DemandOf(const KvLayout& layout, const IndexLayout& index, const KvRetention& retention, uint32_t positions,
                  uint32_t shared = 0);

// INVALID_ARGUMENT when the index cannot be kept of heads of this dimension; OUT_OF_RANGE when so many positions would
// not fit the pool or its fast tier if these were empty: what can never fit here is no matter of waiting, but may fit a
// larger cache rank.
absl::Status CheckCanBeKept(const KvBlockPool& pool, const KvLayout& layout, const IndexLayout& index,
                            const KvRetention& retention, uint32_t positions);

}  // namespace winnow
