#pragma once
#include <cstdint>

#include "tools/plan/roofline.h"

namespace winnow {

// Up to which position GPUs that select in place had better let a sequence attend to everything: one sequence alone
// decodes faster so, as finding rows costs a layer some launches, however short the context is. A constant of model and
// GPU, never of the batch, so that answers do not depend on the load. A multiple of 1,024, and at most
// kMostDenseTokens. `model`: of one GPU's part.
uint32_t DenseBelowTokens(const PlanModel& model, int num_layers, const DeviceRates& rates);

// Larger batches of longer contexts gain more by selecting than one sequence loses.
inline constexpr uint32_t kMostDenseTokens = 32768;

}  // namespace winnow
