#pragma once
#include <cstdint>

#include "kernels/cuda/select/select_memory.cuh"

namespace winnow::device {

// Share of the softmax that sinks, selection and recent window hold, averaged over the queries: exact where every key
// was scored, otherwise at least this, what is not scored taken as its pages' bounds. The leader's threads.
__device__ __noinline__ float CapturedMass(const SelectLaunch& launch, const SelectionList& list,
                                           const ListColumns& scored, const float* key_scores, const float* page_scores,
                                           const SelectMemory& memory) {
  SelectControl& control = *memory.control;
  uint32_t* bitmap = memory.top_k.bitmap;
  const int group = launch.params.group;
  double masses[kMaxGroup] = {}, totals[kMaxGroup] = {};
  const auto share = [&](int q, uint32_t column) {
    return Exp2(fmaf(key_scores[q * launch.key_stride + column], kLog2E, -control.lse[q]));
  };
#pragma unroll
  for (int q = 0; q < kMaxGroup; ++q) {
    if (q >= group) break;
    double* sums = control.warp_masses;
    const auto share_of_q = [&](uint32_t column) -> double { return share(q, column); };
    double mass = BlockSum(0, (scored.last + 31) / 32, sums, [&](uint32_t word) {
      double of_word = 0;
      for (uint32_t bits = bitmap[word]; bits != 0; bits &= bits - 1) of_word += share(q, word * 32 + __ffs(bits) - 1);
      return of_word;
    });
    mass += BlockSum(0, min(scored.first, scored.summed), sums, share_of_q);
    mass += BlockSum(scored.last, scored.summed, sums, share_of_q);
    const double tail = BlockSum(scored.summed, scored.scored, sums, share_of_q);
    mass += tail;
    masses[q] = mass;
    totals[q] = 1 + tail;
  }
  if (scored.granules != nullptr) {
    const uint32_t page_rows = launch.params.pages.page_tokens, num_pages = list.last / page_rows;
    const uint32_t num_granules = (scored.scored + kGranule - 1) / kGranule;
    __syncthreads();
    for (uint32_t word = threadIdx.x; word < (list.num_keys / kGranule + 32) / 32; word += blockDim.x) {
      bitmap[word] = 0;
    }
    __syncthreads();
    for (uint32_t g = threadIdx.x; g < num_granules; g += blockDim.x) {
      atomicOr(&bitmap[scored.granules[g] / 32], 1u << scored.granules[g] % 32);
    }
    __syncthreads();
    const auto is_scored = [&](uint32_t row) { return bitmap[row / kGranule / 32] >> row / kGranule % 32 & 1; };
#pragma unroll
    for (int q = 0; q < kMaxGroup; ++q) {
      if (q >= group) break;
      totals[q] += BlockSum(0, num_pages, control.warp_masses, [&](uint32_t page) -> double {
        uint32_t rows = page_rows;
        for (uint32_t row = page * page_rows; row < (page + 1) * page_rows; row += min(page_rows, kGranule)) {
          rows -= is_scored(row) ? min(page_rows, kGranule) : 0;
        }
        const float bound = page_scores[q * launch.page_stride + page];
        return rows == 0 ? 0 : rows * double{Exp2(fmaf(bound, kLog2E, -control.lse[q]))};
      });
    }
  }
  double mean = 0;
#pragma unroll
  for (int q = 0; q < kMaxGroup; ++q) {
    if (q >= group) break;
    const double mass = scored.granules == nullptr ? masses[q] : masses[q] / totals[q];
    // As on CPUs: an exact mass that is not a number says so, a bound counts as 0.
    mean += mass != mass && scored.granules != nullptr ? 0 : mass;
  }
  mean /= group;
  return mean > 1 ? 1.0f : static_cast<float>(mean);
}

}  // namespace winnow::device
