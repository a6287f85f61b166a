#include "kernels/cpu/index_keys.h"

#include <cmath>
#include <cstring>

#include "common/base/check.h"
#include "common/base/kv_layout.h"
#include "kernels/cpu/quantize.h"
#include "kernels/cpu/row_scales.h"
#include "kernels/cpu/scalar.h"

namespace winnow {
namespace {

// All formats are [steps][32] words of four bytes: an f32, a pair of bf16, four int8 or eight int4.
constexpr size_t kWord = 4;

// Each byte of a word holds an element of the first four and one of the last four.
void PackInt4(const int8_t* values, int steps, int8_t* packed) {
  for (int s = 0; s < steps; ++s, values += 8) {
    for (int i = 0; i < 4; ++i) *packed++ = static_cast<int8_t>((values[i] + 8) | (values[4 + i] + 8) << 4);
  }
}

// Rows of int8 have the codes and the scale that their tile is to have.
void IndexCodes(const IndexKeysParams& params) {
  const int steps = (params.head_dim + 3) / 4;
  char* words = static_cast<char*>(params.tile) + params.first_row * kWord;
  char* scales = words + static_cast<size_t>(steps) * kBlockTokens * kWord;
  int8_t key[kMaxScoredHeadDim + kWord] = {};
  const char* row = static_cast<const char*>(params.rows);
  for (int r = 0; r < params.num_rows; ++r, row += params.row_elements) {
    std::memcpy(key, row, params.head_dim);
    for (int s = 0; s < steps; ++s) std::memcpy(words + (s * kBlockTokens + r) * kWord, key + s * kWord, kWord);
    const float stored = KeyScale(row, params.head_dim), scale = std::isfinite(stored) ? stored : 0;
    std::memcpy(scales + r * kWord, &scale, kWord);
  }
}

size_t RowElements(const IndexKeysParams& params) {
  return static_cast<size_t>(params.row_elements > 0 ? params.row_elements : 2 * params.head_dim);
}

void IndexQuantised(const IndexKeysParams& params) {
  const bool int4 = *params.tile_dtype == Dtype::kI4;
  const int steps = int4 ? (params.head_dim + 7) / 8 : (params.head_dim + 3) / 4;
  char* words = static_cast<char*>(params.tile) + params.first_row * kWord;
  char* scales = words + static_cast<size_t>(steps) * kBlockTokens * kWord;
  float key[kMaxScoredHeadDim];
  int8_t quantised[kMaxScoredHeadDim];
  for (int r = 0; r < params.num_rows; ++r) {
    const size_t first = static_cast<size_t>(r) * RowElements(params);
    for (int d = 0; d < params.head_dim; ++d) key[d] = LoadAsF32(params.rows, params.dtype, first + d);
    float scale = (int4 ? QuantizeInt4 : QuantizeInt8)(key, params.head_dim, quantised);
    if (std::isnan(scale)) scale = 0;
    if (int4) PackInt4(quantised, steps, quantised);
    for (int s = 0; s < steps; ++s) std::memcpy(words + (s * kBlockTokens + r) * kWord, quantised + s * kWord, kWord);
    std::memcpy(scales + r * kWord, &scale, kWord);
  }
}

}  // namespace

void IndexKeys(const IndexKeysParams& params) {
  WINNOW_CHECK(params.head_dim % 2 == 0 && params.first_row >= 0 && params.first_row + params.num_rows <= kBlockTokens);
  if (params.dtype == Dtype::kI8) {
    WINNOW_CHECK(params.head_dim <= kMaxScoredHeadDim && params.tile_dtype.value_or(Dtype::kI8) == Dtype::kI8);
    return IndexCodes(params);
  }
  WINNOW_CHECK(params.dtype == Dtype::kF32 || params.dtype == Dtype::kBf16);
  if (params.tile_dtype.value_or(params.dtype) != params.dtype) {
    WINNOW_CHECK(params.head_dim <= kMaxScoredHeadDim);
    WINNOW_CHECK(params.tile_dtype == Dtype::kI8 || params.tile_dtype == Dtype::kI4);
    return IndexQuantised(params);
  }
  const size_t row_bytes = RowElements(params) * DtypeBytes(params.dtype);
  const size_t key_bytes = static_cast<size_t>(params.head_dim) * DtypeBytes(params.dtype);
  const char* rows = static_cast<const char*>(params.rows);
  char* tile = static_cast<char*>(params.tile) + params.first_row * kWord;
  for (size_t s = 0; s < key_bytes / kWord; ++s) {
    for (int r = 0; r < params.num_rows; ++r) {
      std::memcpy(tile + (s * kBlockTokens + r) * kWord, rows + r * row_bytes + s * kWord, kWord);
    }
  }
}

}  // namespace winnow
