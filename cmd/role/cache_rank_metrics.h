#pragma once
#include "cache_rank/metrics.h"
#include "common/metrics/family_writer.h"

namespace winnow {

// A cache rank's counters as metric families.
void WriteMetrics(const CacheRankSnapshot& snapshot, FamilyWriter& writer);

}  // namespace winnow
