#pragma once
#include <cuda_bf16.h>

#include "common/base/kv_layout.h"
#include "common/base/page_groups.h"
#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/rows/appended_page.cuh"
#include "kernels/device/params/cache.h"

namespace winnow::device {

// The bounds of a list's group of pages, from those of all its pages: lane i < head_dim / 8 holds elements
// [8i, 8i + 8).
template <int kHeadDim>
__device__ __forceinline__ void BoundGroup(const AppendParams& p, int list, uint32_t group, int lane) {
  constexpr int kLanes = kHeadDim / 8;
  const uint32_t first_block = p.lists[list].first_block, per_block = kBlockTokens / p.page_tokens;
  __nv_bfloat162 greatest[4], least[4];
#pragma unroll 4
  for (uint32_t i = 0; i < kGroupPages; ++i) {
    const uint32_t page = group * kGroupPages + i;
    const uint32_t block = p.blocks[first_block + page / per_block];
    const uint4* const bounds = PageBounds<kHeadDim>(p, block, page % per_block);
    const uint4 raw[2] = {bounds[lane], bounds[kLanes + lane]};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const __nv_bfloat162 most = reinterpret_cast<const __nv_bfloat162*>(&raw[0])[k];
      const __nv_bfloat162 fewest = reinterpret_cast<const __nv_bfloat162*>(&raw[1])[k];
      greatest[k] = i == 0 ? most : __hmax2(greatest[k], most);
      least[k] = i == 0 ? fewest : __hmin2(least[k], fewest);
    }
  }
  const size_t number = first_block / GroupBlocks(p.page_tokens) + group;
  uint4* const to = static_cast<uint4*>(p.group_bounds) + number * 2 * kLanes;
  to[lane] = *reinterpret_cast<const uint4*>(greatest);
  to[kLanes + lane] = *reinterpret_cast<const uint4*>(least);
}

// Behind the bounds of a page, where it is the last one of its group and rows come one by one: its other pages were
// bounded by launches before.
template <int kHeadDim>
__device__ __forceinline__ void BoundGroupBehind(const AppendParams& p, int list, uint32_t end, int lane) {
  const uint32_t rows = kGroupPages * p.page_tokens;
  if (p.group_bounds == nullptr || p.rows_per_list > 1 || end % rows != 0) return;
  BoundGroup<kHeadDim>(p, list, end / rows - 1, lane);
}

// Groups that rows_per_list consecutive rows may complete, wherever the first lies.
constexpr int CompletedGroups(int rows_per_list, int page_tokens) {
  return rows_per_list / (static_cast<int>(kGroupPages) * page_tokens) + 1;
}

// A warp to each (list, group that the list's rows complete).
template <int kHeadDim>
__global__ void __launch_bounds__(kAppendWarps * 32) BoundGroups(const AppendParams p) {
  WaitForInputs();
  LetDependentsStart();
  const int most = CompletedGroups(p.rows_per_list, p.page_tokens);
  const int task = blockIdx.x * kAppendWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
  const int list = task / most;
  if (list >= p.num_lists || lane >= kHeadDim / 8) return;
  const uint32_t rows = kGroupPages * p.page_tokens, group = p.positions[list] / rows + task % most;
  if ((group + 1) * rows <= p.positions[list] + p.rows_per_list) BoundGroup<kHeadDim>(p, list, group, lane);
}

}  // namespace winnow::device
