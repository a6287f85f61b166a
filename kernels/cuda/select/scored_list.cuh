#pragma once
#include <cstdint>

#include "kernels/cuda/select/select_memory.cuh"

namespace winnow::device {

// A list whose scores lie in global memory, as the kernels that select from those begin with it.
template <ImportanceKind kKind>
struct ScoredList {
  ListColumns columns;
  const float* key_scores;
  Importance<kKind> importance;

  // Sums the softmaxes, if there are any, into control.lse. All threads, behind WaitForInputs.
  __device__ __forceinline__ ScoredList(const SelectLaunch& launch, const SelectionList& list, uint32_t index,
                                        SelectControl& control)
      : columns(ListColumns::Of(list, index, launch.Granules())),
        key_scores(launch.key_scores + launch.key_stride * launch.params.group * index),
        importance{.scores = key_scores,
                   .stride = launch.key_stride,
                   .lse = control.lse,
                   .scored_end = ~0u,
                   .group = launch.params.group,
                   .aligned = true} {
    if (launch.parts == nullptr) return;
    SumSoftmaxes(launch.parts + static_cast<int64_t>(launch.max_runs) * kMaxGroup * index,
                 (columns.scored + kKeyRun - 1) / kKeyRun, control);
  }

  // What selected rows must bring, in 1 / kMassUnit, so that they and what is attended anyway hold `share` of each
  // softmax, averaged; 0: nothing. All threads of a block.
  __device__ __forceinline__ uint64_t MissingMass(float share, SelectControl& control) const {
    const auto of_column = [&](uint32_t column) -> double { return SoftmaxSumOf(importance, column); };
    const double held = BlockSum(0, min(columns.first, columns.summed), control.warp_masses, of_column) +
                        BlockSum(columns.last, columns.summed, control.warp_masses, of_column);
    const double missing = double{share} * importance.group - held;
    return missing > 0 ? max(1ull, __double2ull_ru(missing * double{kMassUnit})) : 0;
  }
};

}  // namespace winnow::device
