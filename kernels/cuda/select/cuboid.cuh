#pragma once
#include <cuda_bf16.h>

#include <cfloat>
#include <cstdint>

#include "common/base/kv_layout.h"
#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/device/params/page_units.h"

namespace winnow::device {

inline constexpr int kCuboidWarps = 4;

// One warp per (list, page that ends among the list's rows); a lane has kHeadDim / 32 neighbouring dimensions. The
// arithmetic is the CPU backend's, operation by operation (cache_rank/index/page_indexer.cc).
template <int kHeadDim, bool kInt8>
__global__ void __launch_bounds__(kCuboidWarps * 32) IndexCuboids(const CuboidParams p) {
  WaitForInputs();
  LetDependentsStart();
  constexpr int kDims = kHeadDim / 32;
  const int pages = (p.rows_per_list + p.page_tokens - 1) / p.page_tokens;
  const int task = blockIdx.x * kCuboidWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
  const int index = task / pages;
  if (index >= p.num_lists) return;
  const uint32_t first = p.positions[index], last = first + p.rows_per_list;
  if (first == ~0u) return;
  // The pages that end in (first, last], one after the other.
  const uint32_t page = first / p.page_tokens + task % pages;
  if ((page + 1) * p.page_tokens > last) return;
  const uint32_t begin = page * p.page_tokens;
  const uint32_t block = p.blocks[p.lists[index].first_block + begin / kBlockTokens];
  const size_t first_row = static_cast<size_t>(block) * kBlockTokens + begin % kBlockTokens;
  const auto element = [&](int row, int i) {
    const size_t at = (first_row + row) * (2 * kHeadDim) + lane * kDims + i;
    if constexpr (kInt8) {
      // A key whose scale is not finite counts as zeros, as it does where it is scored.
      const float scale = p.row_scales[2 * (first_row + row)];
      return static_cast<float>(static_cast<const int8_t*>(p.row_pool)[at]) * (scale < INFINITY ? scale : 0);
    } else {
      return __bfloat162float(static_cast<const __nv_bfloat16*>(p.row_pool)[at]);
    }
  };
  float high[kDims], low[kDims], distance[kDims];
#pragma unroll
  for (int i = 0; i < kDims; ++i) {
    high[i] = -FLT_MAX;
    low[i] = FLT_MAX;
    distance[i] = 0;
  }
#pragma unroll 8
  for (int row = 0; row < p.page_tokens; ++row) {
#pragma unroll
    for (int i = 0; i < kDims; ++i) {
      const float x = element(row, i);
      high[i] = x > high[i] && x <= FLT_MAX ? x : high[i];
      low[i] = x < low[i] && x >= -FLT_MAX ? x : low[i];
    }
  }
  float centre[kDims];
#pragma unroll
  for (int i = 0; i < kDims; ++i) {
    if (high[i] < low[i]) high[i] = low[i] = 0;
    centre[i] = __fadd_rn(high[i] / 2, low[i] / 2);
  }
#pragma unroll 8
  for (int row = 0; row < p.page_tokens; ++row) {
#pragma unroll
    for (int i = 0; i < kDims; ++i) {
      const float x = element(row, i);
      const float off = fabsf(__fsub_rn(x, centre[i]));
      distance[i] = __fadd_rn(distance[i], off <= FLT_MAX ? off : 0);
    }
  }
  const int64_t stride = PageBlockStride(p.block_stride, p.page_tokens, kHeadDim);
  auto* to = reinterpret_cast<__nv_bfloat16*>(static_cast<uint8_t*>(p.cuboids) + block * stride) +
             begin % kBlockTokens / p.page_tokens * (2 * kHeadDim) + lane * kDims;
#pragma unroll
  for (int i = 0; i < kDims; ++i) {
    const float radius = __fdiv_rn(distance[i], static_cast<float>(p.page_tokens));
    to[i] = __float2bfloat16_rn(__fadd_rn(centre[i], radius));
    to[kHeadDim + i] = __float2bfloat16_rn(__fsub_rn(centre[i], radius));
  }
}

}  // namespace winnow::device
