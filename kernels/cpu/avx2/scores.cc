#include "common/base/check.h"
#include "common/base/kv_layout.h"
#include "kernels/cpu/avx2/avx2.h"
#include "kernels/cpu/avx2/panel.h"
#include "kernels/cpu/scalar.h"

namespace winnow::avx2 {
namespace {

constexpr int kMaxHeadDim = 1024;

}  // namespace

void KeyScore(const KeyScoreParams& p) {
  WINNOW_CHECK(p.head_dim % 2 == 0 && p.head_dim <= kMaxHeadDim && p.dtype != Dtype::kF16);
  const int num_tiles = (p.num_keys + kBlockTokens - 1) / kBlockTokens;
  const auto score = p.dtype == Dtype::kBf16 ? PanelRows<Dtype::kBf16> : PanelRows<Dtype::kF32>;
  float q[kTileRows * kMaxHeadDim];
  for (int first = 0; first < p.num_queries; first += kTileRows) {
    const int count = p.num_queries - first < kTileRows ? p.num_queries - first : kTileRows;
    const float* from = p.queries + static_cast<int64_t>(first) * p.head_dim;
    for (int i = 0; i < count * p.head_dim; ++i) q[i] = p.dtype == Dtype::kBf16 ? RoundToBf16(from[i]) : from[i];
    for (int t = 0; t < num_tiles; ++t) {
      float* out = p.scores + first * p.scores_stride + static_cast<int64_t>(t) * kBlockTokens;
      score(q, p.head_dim, count, p.tiles[t], kBlockTokens, p.head_dim, out, p.scores_stride, false);
      for (int i = 0; i < count; ++i) {
        for (int j = 0; j < kBlockTokens; ++j) out[i * p.scores_stride + j] *= p.scale;
      }
    }
  }
}

}  // namespace winnow::avx2
