#include "tools/plan/dense_below.h"

#include <algorithm>

#include "tools/plan/step_time.h"

namespace winnow {
uint32_t DenseBelowTokens(const PlanModel& model, int num_layers, const DeviceRates& rates) {
  const double row_seconds = model.kv_token_bytes / rates.memory_bytes_per_s;  // a token's rows, in all layers
  const double crossing = num_layers * kInPlaceLayerSeconds / row_seconds;
  return static_cast<uint32_t>(std::min<double>(crossing, kMostDenseTokens)) / 1024 * 1024;
}

}  // namespace winnow
