#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/fp8.h"
#include "common/base/kv_layout.h"
#include "kernels/cpu/quantize.h"
#include "kernels/cpu/scalar.h"
#include "kernels/device/params/cache.h"

// Numbers as a GPU keeps them, and the keys that its kernels score.
namespace winnow::test {

std::vector<float> ArrayFromBf16(const void* values, size_t count);
// As f32 or bf16.
void Store(const std::vector<float>& values, Dtype dtype, void* out);

// The nearest e4m3 code, of which 448 is the greatest.
uint8_t ToF8(float value);

// A key of a list, as Params (of kernels that score keys) say where keys lie.
template <typename Params>
std::vector<float> KeyAt(const Params& p, const device::SelectionList& list, uint32_t position) {
  const size_t block = p.blocks[list.first_block + position / kBlockTokens], in_block = position % kBlockTokens;
  const auto* key =
      static_cast<const std::byte*>(p.keys.keys) + block * p.keys.block_stride + in_block * p.keys.key_stride;
  std::vector<float> out(p.head_dim);
  for (int d = 0; d < p.head_dim; ++d) {
    if (p.keys.dtype == Dtype::kBf16) {
      out[d] = Bf16ToF32(reinterpret_cast<const uint16_t*>(key)[d]);
      continue;
    }
    const float scale = p.keys.scales[(block * kBlockTokens + in_block) * p.keys.scale_stride];
    out[d] = p.keys.dtype == Dtype::kI8 ? reinterpret_cast<const int8_t*>(key)[d] * (std::isfinite(scale) ? scale : 0)
                                        : Fp8ToF32(reinterpret_cast<const uint8_t*>(key)[d]) * scale;
  }
  return out;
}

// The bounds of a list's page, [2 * head_dim] of maxima and minima, and a query's bound by them.
const uint16_t* BoundsOfPage(const device::SelectParams& p, const device::SelectionList& list, uint32_t page);
float BoundByQuery(const device::SelectParams& p, const device::SelectionList& list, int query, const uint16_t* bounds);

// What keys are scored with: of int8 the query is rounded as they are.
template <typename Params>
std::vector<float> ScoringQuery(const Params& p, const float* query) {
  std::vector<float> out(query, query + p.head_dim);
  if (p.keys.dtype != Dtype::kI8) return out;
  std::vector<int8_t> codes((p.head_dim + 7) / 8 * 8);
  const float scale = QuantizeInt8(query, p.head_dim, codes.data());
  for (int d = 0; d < p.head_dim; ++d) out[d] = static_cast<float>(codes[d]) * scale;
  return out;
}

}  // namespace winnow::test
