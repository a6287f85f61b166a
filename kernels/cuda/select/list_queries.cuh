#pragma once
#include <cstdint>

#include "kernels/cuda/select/unit_scores.cuh"

namespace winnow::device {

// The queries of a list as the operands of its pages and of its keys (LoadQueries gives the same bits): a warp to a
// query and an operand. They are on their way from Load on, and waited for by Store.
template <UnitFormat kFormat, int kDim>
class ListQueries {
 public:
  __device__ __forceinline__ ListQueries()
      : query_(static_cast<int>(threadIdx.x / 32) % kMaxGroup), lane_(threadIdx.x % 32) {}

  __device__ __forceinline__ void Load(const float* queries, int group) {
#pragma unroll
    for (int i = 0; i < kDim / 32; ++i) own_[i] = query_ < group ? queries[query_ * kDim + i * 32 + lane_] : 0;
  }

  // Ends without a barrier.
  __device__ __forceinline__ void Store(float scale, uint8_t* page_operand, float* page_factors, uint8_t* key_operand,
                                        float* key_factors) const {
    const int operand = static_cast<int>(threadIdx.x / 32) / kMaxGroup;
    if (operand == 0) StoreForPages(scale, page_operand, page_factors);
    if (operand == 1) StoreForKeys(scale, key_operand, key_factors);
  }

 private:
  // The positive parts, then the negative ones.
  __device__ __forceinline__ void StoreForPages(float scale, uint8_t* operand, float* factors) const {
    auto* const to = reinterpret_cast<__nv_bfloat16*>(operand + query_ * Operand<UnitFormat::kBf16, 2 * kDim>::kStride);
#pragma unroll
    for (int i = 0; i < kDim / 32; ++i) {
      to[i * 32 + lane_] = __float2bfloat16_rn(own_[i] < 0 ? 0 : own_[i]);
      to[kDim + i * 32 + lane_] = __float2bfloat16_rn(own_[i] > 0 ? 0 : own_[i]);
    }
    if (lane_ == 0) factors[query_] = scale;
  }

  // kF8: f16, scaled by a power of two.
  __device__ __forceinline__ void StoreForKeys(float scale, uint8_t* operand, float* factors) const {
    uint8_t* const to = operand + query_ * Operand<kFormat, kDim>::kStride;
    if constexpr (kFormat == UnitFormat::kI8) {
      const Int8Step step(WarpMaxBits(MaxBits(own_)));
      const auto codes = step.Quantize(own_);
#pragma unroll
      for (int i = 0; i < kDim / 32; ++i) to[i * 32 + lane_] = codes.at[i];
      if (lane_ == 0) factors[query_] = step.scale * scale;
      return;
    }
    float unit = 1;
    if constexpr (kFormat == UnitFormat::kF8) {
      float largest = 0;
#pragma unroll
      for (int i = 0; i < kDim / 32; ++i) largest = fmaxf(largest, fabsf(own_[i]));
      unit = UnitOf(__uint_as_float(__reduce_max_sync(~0u, __float_as_uint(largest))));
    }
    const float inverse = 1 / unit;
#pragma unroll
    for (int i = 0; i < kDim / 32; ++i) {
      if constexpr (kFormat == UnitFormat::kBf16) {
        reinterpret_cast<__nv_bfloat16*>(to)[i * 32 + lane_] = __float2bfloat16_rn(own_[i]);
      } else {
        reinterpret_cast<__half*>(to)[i * 32 + lane_] = __float2half_rn(own_[i] * inverse);
      }
    }
    if (lane_ == 0) factors[query_] = unit * scale;
  }

  const int query_, lane_;
  float own_[kDim / 32];
};

}  // namespace winnow::device
