#include "cmd/role/cache_memory.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/gibibytes.h"

namespace winnow {
namespace {

// Of what is free, when nothing is said: an inference rank on the same machine takes up to 60 % for itself.
constexpr double kAutomaticShare = 0.3;

}  // namespace

std::string CacheMemoryPlan::ToString() const {
  std::string others;
  if (fast_bytes > 0) absl::StrAppend(&others, " + ", Gibibytes(fast_bytes), " of fast tier");
  if (device_host_bytes > 0)
    absl::StrAppend(&others, " + ", Gibibytes(device_host_bytes), " for rows that the GPU pushes");
  if (projection_bytes > 0) absl::StrAppend(&others, " + ", Gibibytes(projection_bytes), " for query projections");
  return absl::StrCat(Gibibytes(kv_bytes), " for KV blocks", others, " of ", Gibibytes(free_bytes), " free");
}

absl::StatusOr<CacheMemoryPlan> PlanCacheMemory(const CacheOptions& options, int64_t projection_bytes,
                                                int64_t free_bytes) {
  CacheMemoryPlan plan{.kv_bytes = options.memory_bytes,
                       .fast_bytes = options.fast_memory_bytes,
                       .device_host_bytes = options.device_host_memory_bytes,
                       .projection_bytes = projection_bytes,
                       .free_bytes = free_bytes};
  if (options.memory_bytes == 0) {
    const int64_t left = std::max<int64_t>(free_bytes - plan.total_bytes(), 0);
    plan.kv_bytes = static_cast<int64_t>(kAutomaticShare * static_cast<double>(left));
    if (plan.kv_bytes == 0) return absl::ResourceExhaustedError("no memory is left for KV blocks; lower --fast-memory");
  }
  if (plan.total_bytes() > free_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("memory does not fit: ", plan.ToString(), ", ",
                                                     Gibibytes(plan.total_bytes() - free_bytes),
                                                     " are missing; lower --memory (or --cache-memory of `winnow up`)",
                                                     options.fast_memory_bytes > 0 ? " or --fast-memory" : ""));
  }
  return plan;
}

}  // namespace winnow
