#pragma once
#include <cstdint>
#include <string>

#include "cmd/role/options/cache_options.h"
#include "common/base/status.h"

namespace winnow {

// The host memory of a cache rank, worked out before anything is mapped.
struct CacheMemoryPlan {
  int64_t kv_bytes = 0;           // for blocks of KV and their index
  int64_t fast_bytes = 0;         // of a fast tier
  int64_t device_host_bytes = 0;  // pinned, for rows that a GPU pushes
  int64_t projection_bytes = 0;   // of weights that queries are projected with
  int64_t free_bytes = 0;         // of the machine, or of the container's limit

  int64_t total_bytes() const { return kv_bytes + fast_bytes + device_host_bytes + projection_bytes; }
  std::string ToString() const;
};

// What these options come to where so much is free; KV takes 30 % of what the rest leaves where nothing is said.
// RESOURCE_EXHAUSTED, with the arithmetic and the options to change, when it does not fit.
absl::StatusOr<CacheMemoryPlan> PlanCacheMemory(const CacheOptions& options, int64_t projection_bytes,
                                                int64_t free_bytes);

}  // namespace winnow
