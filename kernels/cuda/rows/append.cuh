#pragma once
#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include "common/base/kv_layout.h"
#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/rows/appended_page.cuh"
#include "kernels/cuda/rows/bound_groups.cuh"
#include "kernels/device/params/cache.h"

namespace winnow::device {

inline constexpr float kGreatestE4m3 = 448;

// One warp per (list, page that the list's rows touch): it alone writes the page's bounds. Lane i holds elements
// [8i, 8i + 8) of the key and of the value.
template <int kHeadDim>
__global__ void __launch_bounds__(kAppendWarps * 32) Append(const AppendParams p) {
  WaitForInputs();
  LetDependentsStart();
  const int pages = AppendPages(p.rows_per_list, p.page_tokens);
  const int task = blockIdx.x * kAppendWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
  const int list = task / pages;
  if (list >= p.num_lists) return;
  constexpr int kLanes = kHeadDim / 8;
  const bool holds = lane < kLanes;

  const AppendedPage<kHeadDim> page(p, list, task % pages);
  if (page.empty()) return;
  const uint32_t block = page.Block(p, list);

  __nv_bfloat162 greatest[4], least[4];
  uint4* const bounds = page.Bounds(p, block);
  const bool begun = page.begun();
  if (p.bounds != nullptr && begun && holds) {
    *reinterpret_cast<uint4*>(greatest) = bounds[lane];
    *reinterpret_cast<uint4*>(least) = bounds[kLanes + lane];
  }
  for (uint32_t position = page.begin; position < page.end; ++position) {
    const size_t row = static_cast<size_t>(list) * p.rows_per_list + (position - page.first);
    const size_t stored = static_cast<size_t>(block) * kBlockTokens + position % kBlockTokens;
    uint4* to = static_cast<uint4*>(p.row_pool) + stored * (2 * kLanes);
    const uint4* from = p.rows == nullptr ? to : static_cast<const uint4*>(p.rows) + row * (2 * kLanes);
    uint4 raw = {};
    if (holds) {
      raw = from[lane];
      if (p.row_pool != nullptr && p.rows != nullptr) {
        to[lane] = raw;
        to[kLanes + lane] = from[kLanes + lane];
      }
    }
    const __nv_bfloat162* key = reinterpret_cast<const __nv_bfloat162*>(&raw);
    if (p.bounds != nullptr) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool fresh = !begun && position == page.begin;
        greatest[i] = fresh ? key[i] : __hmax2(greatest[i], key[i]);
        least[i] = fresh ? key[i] : __hmin2(least[i], key[i]);
      }
    }
    if (p.key_copy == nullptr) continue;
    float values[8], magnitude = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = __bfloat1622float2(key[i]);
      values[2 * i] = pair.x;
      values[2 * i + 1] = pair.y;
      magnitude = fmaxf(magnitude, fmaxf(fabsf(pair.x), fabsf(pair.y)));
    }
    // Magnitudes are not negative, so that their bits are in their order.
    magnitude = __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(magnitude)));
    const float scale = magnitude > 0 ? __fdiv_rn(magnitude, kGreatestE4m3) : 1;
    if (lane == 0) p.key_scales[stored] = scale;
    if (holds) {
      __nv_fp8x2_storage_t packed[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 pair = {__fdiv_rn(values[2 * i], scale), __fdiv_rn(values[2 * i + 1], scale)};
        packed[i] = __nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, __NV_E4M3);
      }
      static_cast<uint2*>(p.key_copy)[stored * kLanes + lane] = *reinterpret_cast<const uint2*>(packed);
    }
  }
  if (p.bounds != nullptr && holds) {
    bounds[lane] = *reinterpret_cast<const uint4*>(greatest);
    bounds[kLanes + lane] = *reinterpret_cast<const uint4*>(least);
    BoundGroupBehind<kHeadDim>(p, list, page.end, lane);
  }
}

}  // namespace winnow::device
