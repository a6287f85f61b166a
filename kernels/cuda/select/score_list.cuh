#pragma once
#include <cstdint>

#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/select/page_groups.cuh"
#include "kernels/cuda/select/run_scorer.cuh"
#include "kernels/device/params/selection.h"

namespace winnow::device {

// The granules of each list that are scored, where not every key is; or the groups whose pages are, where not every
// page is.
struct ScoredGranules {
  const uint32_t* granules = nullptr;  // [num_lists, stride]; null: every key
  const uint32_t* counts = nullptr;    // [num_lists]; ~0u: every key of this list
  int64_t stride = 0;

  // Those of a list; null: all of it.
  __device__ const uint32_t* KeptOf(uint32_t index) const {
    return granules == nullptr || counts[index] == ~0u ? nullptr : granules + stride * index;
  }
};

// Columns of a list. The rows behind the last complete granule, all attended anyway, are scored for the captured mass,
// but have no say in a two-stage selection.
struct ListColumns {
  uint32_t scored;       // columns
  uint32_t summed;       // of these, columns that are in the softmaxes
  uint32_t first, last;  // that may be selected
  const uint32_t* granules;

  __device__ static ListColumns Of(const SelectionList& list, uint32_t index, const ScoredGranules& granules) {
    const uint32_t count = granules.granules == nullptr ? ~0u : granules.counts[index];
    if (count == ~0u) return {list.num_keys, list.num_keys, list.first, list.last, nullptr};
    const uint32_t tail = list.num_keys % kGranule, summed = (count - (tail != 0)) * kGranule;
    return {summed + tail, summed, list.first, summed + tail - (list.num_keys - list.last),
            granules.granules + granules.stride * index};
  }
};

struct ScoreLaunch {
  SelectParams params;
  bool chained;    // behind kernels of the same call: lists and queries were there before those
  bool of_groups;  // bounds of groups in the place of pages'
  ScoredGranules granules;
  float* scores;  // [num_lists, group, stride]
  int64_t stride;
  SoftmaxPart* parts;  // [num_lists, max_runs, 8]; may be null
  uint32_t max_runs;
};

// Scores of keys or, with kPages, of pages: the warps of gridDim.x blocks to a list, up to kMaxWarpRuns runs to a
// warp.
template <UnitFormat kFormat, int kDim, bool kPages>
__global__ void __launch_bounds__(kScoreWarps * 32, 2) ScoreKernel(const __grid_constant__ ScoreLaunch launch) {
  __shared__ __align__(16) uint8_t operand[Operand<kFormat, kDim>::kBytes];
  __shared__ float factors[kMaxGroup];
  constexpr uint32_t kRun = kPages ? kPageRun : kKeyRun;
  __shared__ RunColumns<kFormat, kRun> columns[kScoreWarps];
  // What is chained to this kernel reads lists at once: they must be there before it may begin.
  if (!launch.chained) WaitForInputs();
  LetDependentsStart();
  const SelectParams& params = launch.params;
  const uint32_t index = blockIdx.y;
  const SelectionList list = params.lists[index];
  const uint32_t page_rows = params.pages.page_tokens, warp = threadIdx.x / 32;
  if (launch.chained) WaitForInputs();
  uint32_t end, summed;
  UnitTable table{static_cast<const uint8_t*>(params.keys.keys),
                  params.keys.scales,
                  params.blocks + list.first_block,
                  params.keys.block_stride,
                  params.keys.key_stride,
                  5,
                  nullptr,
                  params.keys.scale_stride};
  if constexpr (kPages) {
    const uint32_t* kept = launch.granules.KeptOf(index);
    const PageGroups groups = GroupsOf(params, list);
    if (launch.of_groups) {
      table = GroupTable<kDim / 2>(params, list);
      end = summed = groups.leaves_out() ? groups.end : 0;
    } else {
      end = summed = (kept == nullptr ? list : Grouped(list, groups)).num_keys / page_rows;
      table = {static_cast<const uint8_t*>(params.pages.bounds),
               nullptr,
               params.blocks + list.first_block,
               PageBlockStride(params.pages.block_stride, page_rows, kDim / 2),
               2 * kDim,
               page_rows == 8    ? 2u
               : page_rows == 16 ? 1u
                                 : 0u,
               kept};
    }
  } else {
    const ListColumns scored = ListColumns::Of(list, index, launch.granules);
    end = scored.scored;
    summed = scored.summed;
    table.granules = scored.granules;
  }
  // Runs go round robin over the warps of the list's blocks.
  const uint32_t first = (blockIdx.x * kScoreWarps + warp) * kRun, step = gridDim.x * kScoreWarps * kRun;
  if (blockIdx.x * kScoreWarps * kRun >= end) return;
  const float* queries = params.queries + static_cast<int64_t>(list.query) * params.group * (kPages ? kDim / 2 : kDim);
  const int num_runs = first < end ? static_cast<int>((end - first + step - 1) / step) : 0;
  RunScorer<kFormat, kDim, kRun> scorer(table, first, step, num_runs, end, columns[warp]);
  if (num_runs > 0) scorer.Begin();
  LoadQueries<kFormat, kDim, kPages>(queries, params.group, params.scale, operand, factors);
  __syncthreads();
  if (num_runs == 0) return;
  SoftmaxPart* parts =
      launch.parts == nullptr ? nullptr : launch.parts + static_cast<int64_t>(launch.max_runs) * kMaxGroup * index;
  scorer.Finish(operand, factors,
                {launch.scores + launch.stride * params.group * index, launch.stride, params.group, parts, summed});
}

template <UnitFormat kFormat, int kDim, bool kPages>
void LaunchScore(Stream stream, const ScoreLaunch& launch, uint32_t max_columns) {
  // A warp takes several runs where that leaves enough blocks to fill a large device.
  constexpr uint32_t kColumns = kScoreWarps * (kPages ? kPageRun : kKeyRun), kEnoughBlocks = 500;
  const uint32_t lists = launch.params.num_lists, blocks = (max_columns + kColumns - 1) / kColumns;
  uint32_t warp_runs = kMaxWarpRuns;
  while (warp_runs > 1 && (blocks + warp_runs - 1) / warp_runs * lists < kEnoughBlocks) warp_runs /= 2;
  if (blocks == 0 || lists == 0) return;
  LaunchDependent(ScoreKernel<kFormat, kDim, kPages>,
                  {.grid = dim3((blocks + warp_runs - 1) / warp_runs, lists), .threads = kScoreWarps * 32}, stream,
                  launch);
}

template <UnitFormat kFormat>
void ScoreKeysOf(Stream stream, const ScoreLaunch& launch) {
  const uint32_t max_columns = launch.params.max_keys;
  switch (launch.params.head_dim) {
    case 64:
      return LaunchScore<kFormat, 64, false>(stream, launch, max_columns);
    case 96:
      return LaunchScore<kFormat, 96, false>(stream, launch, max_columns);
    case 128:
      return LaunchScore<kFormat, 128, false>(stream, launch, max_columns);
    case 256:
      return LaunchScore<kFormat, 256, false>(stream, launch, max_columns);
  }
}

}  // namespace winnow::device
