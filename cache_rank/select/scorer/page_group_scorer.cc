#include "cache_rank/select/scorer/page_group_scorer.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <numeric>

#include "common/base/check.h"
#include "common/base/kv_layout.h"

namespace winnow {
namespace {

constexpr int kMaxPageDim = kMaxScoredHeadDim;

// Element d of the `kGroupPages` pseudo-keys from `row` on, as they are scored.
void LoadElement(const KeyTable& pages, const std::byte* tile, int row, int d, float* values) {
  switch (pages.dtype) {
    case Dtype::kI8: {
      const auto* const codes = reinterpret_cast<const int8_t*>(tile) + Int8TileOffset(d, row);
      float scale[kGroupPages];
      std::memcpy(scale, tile + Int8TileScaleOffset(pages.head_dim, row), sizeof scale);
      for (uint32_t i = 0; i < kGroupPages; ++i) values[i] = static_cast<float>(codes[4 * i]) * scale[i];
      return;
    }
    case Dtype::kBf16: {
      const auto* const bits =
          reinterpret_cast<const uint16_t*>(tile) + (static_cast<size_t>(d / 2) * kBlockTokens + row) * 2 + d % 2;
      for (uint32_t i = 0; i < kGroupPages; ++i) values[i] = std::bit_cast<float>(uint32_t{bits[2 * i]} << 16);
      return;
    }
    default:
      WINNOW_CHECK(pages.dtype == Dtype::kF32);
      std::memcpy(values, reinterpret_cast<const float*>(tile) + static_cast<size_t>(d) * kBlockTokens + row,
                  kGroupPages * sizeof(float));
  }
}

}  // namespace

void ScorePageGroups(const KeyTable& pages, const float* page_queries, int num_queries, const PageGroups& groups,
                     float* importance) {
  static_assert(kBlockTokens % kGroupPages == 0);
  WINNOW_CHECK(pages.groups == nullptr && pages.head_dim <= kMaxPageDim);
  const int dim = pages.head_dim;
  float bounds[kMaxPageDim], values[kGroupPages];
  for (uint32_t group = groups.begin; group < groups.end; ++group) {
    const uint32_t page = group * kGroupPages;
    const auto* const tile = static_cast<const std::byte*>(pages.tiles[page / kBlockTokens]);
    for (int d = 0; d < dim; ++d) {
      LoadElement(pages, tile, static_cast<int>(page % kBlockTokens), d, values);
      bounds[d] = d < dim / 2 ? *std::max_element(values, values + kGroupPages)
                              : *std::min_element(values, values + kGroupPages);
    }
    float best = -std::numeric_limits<float>::max();
    for (int i = 0; i < num_queries; ++i) {
      const float* const query = page_queries + static_cast<int64_t>(i) * dim;
      best = std::max(best, std::inner_product(bounds, bounds + dim, query, 0.0f));
    }
    importance[group] = best;
  }
}

}  // namespace winnow
