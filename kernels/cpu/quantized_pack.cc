#include "kernels/quantized_pack.h"

#include <algorithm>
#include <cstring>

#include "common/base/check.h"

namespace winnow {
namespace {

// The codes of inputs [first, first + count) of every output, `per_word` of them in each Word.
template <typename Word>
void PackGroup(const QuantizedPanelParams& params, int first, int count, int per_word, Word* out) {
  const int bits = static_cast<int>(8 * sizeof(Word)) / per_word;
  const int in = params.matrix.in_features;
  for (int k = 0; k < std::min(count, in - first); ++k) {
    Word* words = out + static_cast<size_t>(k / per_word) * kPanel;
    const int shift = k % per_word * bits;
    for (int n = 0; n < params.num_outputs; ++n) {
      const auto code = static_cast<Word>(params.codes[static_cast<size_t>(n) * in + first + k]);
      words[n] = static_cast<Word>(words[n] | code << shift);
    }
  }
}

}  // namespace

void PackQuantizedPanel(const QuantizedPanelParams& params) {
  const PackedMatrix& matrix = params.matrix;
  WINNOW_CHECK(IsQuantized(matrix.dtype) && matrix.group_size >= 32 && matrix.group_size % 32 == 0 &&
               params.num_outputs <= kPanel);
  WINNOW_CHECK(!matrix.mxfp4 || (matrix.dtype == Dtype::kI4 && matrix.group_size == 32));
  std::memset(params.packed, 0, PanelBytes(matrix));
  const int in_padded = PackedInFeatures(matrix.in_features);
  const int num_groups = (in_padded + matrix.group_size - 1) / matrix.group_size;
  auto* at = static_cast<uint8_t*>(params.packed);
  for (int group = 0; group < num_groups; ++group) {
    auto* scales = reinterpret_cast<float*>(at);
    auto* zeros = reinterpret_cast<int16_t*>(at + kPanel * sizeof(float));
    for (int n = 0; n < params.num_outputs; ++n) {
      const size_t scale = static_cast<size_t>(n) * num_groups + group;
      if (matrix.mxfp4) {
        at[n] = params.exponents[scale];
        continue;
      }
      scales[n] = params.scales[scale];
      if (matrix.dtype != Dtype::kF8) zeros[n] = params.zeros[scale];
    }
    at += GroupScaleBytes(matrix);
    const int first = group * matrix.group_size;
    const int count = std::min(matrix.group_size, in_padded - first);
    if (matrix.dtype == Dtype::kF8) {
      PackGroup(params, first, count, 2, reinterpret_cast<uint16_t*>(at));
    } else {
      PackGroup(params, first, count, matrix.dtype == Dtype::kI8 ? 4 : 8, reinterpret_cast<uint32_t*>(at));
    }
    at += DtypeBytes(matrix.dtype, static_cast<size_t>(count) * kPanel);
  }
}

}  // namespace winnow
