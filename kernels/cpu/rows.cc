#include "kernels/cpu/rows.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "common/base/check.h"
#include "common/base/kv_layout.h"
#include "kernels/cpu/scalar.h"

namespace winnow {

void MergeStates(const MergeStatesParams& params) {
  constexpr float kEmpty = -std::numeric_limits<float>::infinity();
  for (int row = 0; row < params.num_rows; ++row) {
    float max = kEmpty;
    for (int i = 0; i < params.num_states; ++i) max = std::max(max, params.lse[i][row]);
    float sum = 0;
    float* out = params.out + static_cast<int64_t>(row) * params.head_dim;
    for (int i = 0; i < params.num_states && max != kEmpty; ++i) sum += std::exp(params.lse[i][row] - max);
    bool first = true;
    for (int i = 0; i < params.num_states && max != kEmpty; ++i) {
      if (params.lse[i][row] == kEmpty) continue;  // its o may be anything
      const float weight = std::exp(params.lse[i][row] - max) / sum;
      const float* o = params.o[i] + static_cast<int64_t>(row) * params.head_dim;
      for (int d = 0; d < params.head_dim; ++d) out[d] = first ? weight * o[d] : out[d] + weight * o[d];
      first = false;
    }
    if (first) std::memset(out, 0, params.head_dim * sizeof(float));
    if (params.out_lse != nullptr) params.out_lse[row] = max == kEmpty ? kEmpty : max + std::log(sum);
  }
}

void GatherRows(const GatherRowsParams& params) {
  // Rows lie apart, where hardware prefetches nothing.
  constexpr uint32_t kRowsAhead = 3;
  constexpr size_t kLine = 64;
  const auto row = [&](uint32_t i) {
    const uint32_t position = params.positions[i];
    const char* const block = static_cast<const char*>(params.blocks[position / kBlockTokens]);
    return block + position % kBlockTokens * params.row_bytes;
  };
  char* out = static_cast<char*>(params.out);
  for (uint32_t i = 0; i < params.num_rows; ++i, out += params.row_bytes) {
    if (i + kRowsAhead < params.num_rows) {
      const char* const later = row(i + kRowsAhead);
      for (size_t byte = 0; byte < params.row_bytes; byte += kLine) __builtin_prefetch(later + byte);
    }
    std::memcpy(out, row(i), params.row_bytes);
  }
}

void ScatterRows(const ScatterRowsParams& params) {
  const char* rows = static_cast<const char*>(params.rows);
  char* pool = static_cast<char*>(params.slot_pool);
  for (uint32_t i = 0; i < params.num_rows; ++i, rows += params.row_bytes) {
    std::memcpy(pool + params.slots[i] * params.row_bytes, rows, params.row_bytes);
  }
}

void Embed(const EmbedParams& params) {
  for (int row = 0; row < params.num_rows; ++row) {
    const size_t first = static_cast<size_t>(params.token_ids[row]) * params.hidden_size;
    float* out = params.out + static_cast<int64_t>(row) * params.hidden_size;
    for (int i = 0; i < params.hidden_size; ++i)
      out[i] = params.scale * LoadAsF32(params.table, params.dtype, first + i);
  }
}

void Pack(const PackParams& params) {
  WINNOW_CHECK(params.packed_dtype == Dtype::kBf16 || params.packed_dtype == Dtype::kF32);
  const int in_padded = PackedInFeatures(params.in_features);
  std::memset(params.packed, 0, PackedBytes(params.out_features, params.in_features, params.packed_dtype));
  for (int n = 0; n < params.out_features; ++n) {
    const size_t row = static_cast<size_t>(n) * params.in_features;
    const size_t panel = static_cast<size_t>(n / kPanel) * in_padded * kPanel;
    const int lane = n % kPanel;
    for (int k = 0; k < params.in_features; ++k) {
      if (params.packed_dtype == Dtype::kF32) {
        static_cast<float*>(params.packed)[panel + static_cast<size_t>(k) * kPanel + lane] =
            LoadAsF32(params.weight, params.dtype, row + k);
        continue;
      }
      uint16_t& out =
          static_cast<uint16_t*>(params.packed)[panel + static_cast<size_t>(k / 2) * 2 * kPanel + lane * 2 + k % 2];
      out = params.dtype == Dtype::kBf16 ? static_cast<const uint16_t*>(params.weight)[row + k]
                                         : F32ToBf16(LoadAsF32(params.weight, params.dtype, row + k));
    }
  }
}

}  // namespace winnow
