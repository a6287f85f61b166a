#pragma once
#include <cuda_bf16.h>

#include "common/base/kv_layout.h"
#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/rows/appended_page.cuh"
#include "kernels/cuda/rows/bound_groups.cuh"
#include "kernels/device/params/cache.h"

namespace winnow::device {

// bf16 pairs of the nearest values that are not less, or not greater.
__device__ inline __nv_bfloat162 RoundUp(float low, float high) {
  return {__float2bfloat16_ru(low), __float2bfloat16_ru(high)};
}
__device__ inline __nv_bfloat162 RoundDown(float low, float high) {
  return {__float2bfloat16_rd(low), __float2bfloat16_rd(high)};
}

// The bounds of pages of rows of int8 where they lie. As Append: a warp per (list, page), lane i holds elements
// [8i, 8i + 8). A key whose scale is not finite counts as zeros, as it does where it is scored.
template <int kHeadDim>
__global__ void __launch_bounds__(kAppendWarps * 32) BoundInt8Rows(const AppendParams p) {
  WaitForInputs();
  LetDependentsStart();
  const int pages = AppendPages(p.rows_per_list, p.page_tokens);
  const int task = blockIdx.x * kAppendWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
  const int list = task / pages;
  constexpr int kLanes = kHeadDim / 8;
  if (list >= p.num_lists || lane >= kLanes) return;
  const AppendedPage<kHeadDim> page(p, list, task % pages);
  if (page.empty()) return;
  const uint32_t block = page.Block(p, list);

  __nv_bfloat162 greatest[4], least[4];
  uint4* const bounds = page.Bounds(p, block);
  bool begun = page.begun();
  if (begun) {
    *reinterpret_cast<uint4*>(greatest) = bounds[lane];
    *reinterpret_cast<uint4*>(least) = bounds[kLanes + lane];
  }
  for (uint32_t position = page.begin; position < page.end; ++position) {
    const size_t stored = static_cast<size_t>(block) * kBlockTokens + position % kBlockTokens;
    const uint2 codes = static_cast<const uint2*>(p.row_pool)[stored * (2 * kLanes) + lane];
    const float own = p.row_scales[2 * stored], scale = own < INFINITY ? own : 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t word = i < 2 ? codes.x : codes.y;
      const float low = static_cast<float>(static_cast<int8_t>(word >> i % 2 * 16)) * scale;
      const float high = static_cast<float>(static_cast<int8_t>(word >> (i % 2 * 16 + 8))) * scale;
      greatest[i] = begun ? __hmax2(greatest[i], RoundUp(low, high)) : RoundUp(low, high);
      least[i] = begun ? __hmin2(least[i], RoundDown(low, high)) : RoundDown(low, high);
    }
    begun = true;
  }
  bounds[lane] = *reinterpret_cast<const uint4*>(greatest);
  bounds[kLanes + lane] = *reinterpret_cast<const uint4*>(least);
  BoundGroupBehind<kHeadDim>(p, list, page.end, lane);
}

}  // namespace winnow::device
