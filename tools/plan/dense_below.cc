#include "tools/plan/dense_below.h"

#include <algorithm>

namespace winnow {
namespace {

// What selecting for one sequence adds to a layer, as measured on an H200 at 16k to 64k (44 to 54 us,
// docs/benchmarks.md).
constexpr double kSelectLayerSeconds = 50e-6;

}  // namespace

uint32_t DenseBelowTokens(const PlanModel& model, int num_layers, const GpuRates& rates) {
  const double row_seconds = model.kv_token_bytes / rates.hbm_bytes_per_s;  // a token's rows, in all layers
  const double crossing = num_layers * kSelectLayerSeconds / row_seconds;
  return static_cast<uint32_t>(std::min<double>(crossing, kMostDenseTokens)) / 1024 * 1024;
}

}  // namespace winnow
