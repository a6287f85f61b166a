#pragma once
#include <cstdint>

#include "cmd/up/up_options.h"
#include "common/base/status.h"

namespace winnow {

// The memory of ranks that each have a container or a unit of their own, so that what is automatic cannot be a share of
// the machine's. Of ranks that compute or select on GPUs nothing is said, as a plan does not know what of the host's
// memory a GPU's driver takes.
struct RankSizes {
  // What the options leave to the ranks; 0 where they say it, or where it stays so.
  int64_t slot_memory_bytes = 0;
  int64_t prefill_memory_bytes = 0;
  int64_t cache_memory_bytes = 0;  // of each cache rank
  // What a rank may take: what the plan adds up to, with headroom. 0: any.
  int64_t inference_limit_bytes = 0;
  int64_t cache_limit_bytes = 0;
};

// With a limit, of each rank, automatic sizes are what it leaves; without, what --max-running sequences of the longest
// context need, of all machines. RESOURCE_EXHAUSTED, with the arithmetic, for ranks that the limit does not hold. The
// model must be here.
absl::StatusOr<RankSizes> SizeRanks(const UpOptions& options, int64_t limit_bytes);

// The headroom is what a process takes beside its plan: programs, threads, connections, and memory between blocks.
int64_t LimitFor(int64_t planned_bytes);
int64_t PlannedWithin(int64_t limit_bytes);

}  // namespace winnow
