#pragma once
#include <cstdint>

#include "common/selection/presets.h"
#include "tools/bench/gpu/checks/cache_gpu.h"

namespace winnow {

// Small cases with something to choose, and positions of every kind.
inline CacheGpu::Options Case(const SelectionSpec& spec, uint64_t seed) {
  return {.spec = spec,
          .layout = {.num_layers = 3, .num_query_heads = 10, .num_kv_heads = 2, .head_dim = 128},
          // Below the sinks' end, within the recent window, all rows fit the budget, nobody, and twice sparse.
          .positions = {3, 60, 330, device::kNoPosition, 1999, 1203},
          .num_plans = 3,
          .key_spread = 2,
          .seed = seed};
}

inline SelectionSpec Preset(const char* name, uint32_t budget_tokens = 256) {
  SelectionSpec spec = FindPreset(name).value();
  spec.budget_tokens = budget_tokens;
  return spec;
}

}  // namespace winnow
