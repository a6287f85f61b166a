#pragma once
#include "common/metrics/family_writer.h"
#include "inference_rank/metrics.h"

namespace winnow {

// An inference rank's counters as metric families.
void WriteMetrics(const InferenceRankMetrics& metrics, FamilyWriter& writer);

}  // namespace winnow
