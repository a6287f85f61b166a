#pragma once
#include <cstdint>

#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/select/cluster_cut.cuh"
#include "kernels/cuda/select/cluster_top_k.cuh"
#include "kernels/cuda/select/scored_list.cuh"

// From scores to selections where the keys of a list find room in the shared memory of its cluster: scores are read
// once, and each block writes its own rows.

namespace winnow::device {

// Shared memory of a block.
struct ClusterSelectMemory {
  SelectControl* control;
  ClusterCutMemory cut;

  static constexpr size_t kControlBytes = (sizeof(SelectControl) + sizeof(ClusterCutControl) + 127) / 128 * 128;
  // Parts of a list are cut at fours of columns, and looked at in words of 32.
  static uint32_t BlockColumns(uint32_t blocks, uint32_t max_columns) {
    return ((max_columns + 3) / 4 + blocks) / blocks * 4 + 32;
  }
  static size_t Bytes(uint32_t blocks, uint32_t max_columns, bool by_mass) {
    return kControlBytes + ClusterCutMemory::Bytes(blocks, BlockColumns(blocks, max_columns), by_mass);
  }
  __device__ __forceinline__ static ClusterSelectMemory Of(uint8_t* base, uint32_t blocks, bool by_mass) {
    ClusterSelectMemory memory;
    memory.control = reinterpret_cast<SelectControl*>(base);
    memory.cut.control = reinterpret_cast<ClusterCutControl*>(memory.control + 1);
    memory.cut.Place(base + kControlBytes, blocks, by_mass);
    return memory;
  }
  // Before anything is told to other blocks. All threads of all blocks.
  __device__ __forceinline__ void Begin() const {
    if (threadIdx.x == 0) InitClusterBarrier(&cut.control->arrived);
    cut.Clear();
    ClusterSync();
  }
};

// The part of the columns [first, last) that VisitPart gives to this block.
__device__ __forceinline__ OwnColumns OwnPart(uint32_t first, uint32_t last, uint32_t rank, uint32_t blocks) {
  const uint32_t first_four = first / 4, fours = (last + 3) / 4 - first_four;
  const uint32_t base = (first_four + static_cast<uint32_t>(uint64_t{fours} * rank / blocks)) * 4;
  const uint32_t end = (first_four + static_cast<uint32_t>(uint64_t{fours} * (rank + 1) / blocks)) * 4;
  return {base, min(max(first, base), end) - base, min(last, end) - base};
}

// Keys of a block's columns, counted in bins. Ends without a barrier.
template <int kFours, ImportanceKind kKind, typename Bins, typename Mass>
__device__ __forceinline__ void ReadKeys(const Importance<kKind>& importance, uint32_t first, uint32_t last,
                                         uint32_t base, const ClusterCutMemory& memory, const Bins& bins,
                                         const Mass& mass) {
  VisitPart<kFours>(importance, first, last, [&](uint32_t meant, uint32_t column, const float(&values)[kFours][4]) {
#pragma unroll
    for (int f = 0; f < kFours; ++f) {
      if ((meant >> 4 * f & 15) == 0) continue;
      const uint32_t from = column + f * 4 * blockDim.x;
      const uint32_t keys[4] = {OrderedKey(values[f][0]), OrderedKey(values[f][1]), OrderedKey(values[f][2]),
                                OrderedKey(values[f][3])};
      *reinterpret_cast<uint4*>(memory.keys + (from - base)) = {keys[0], keys[1], keys[2], keys[3]};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if ((meant >> (4 * f + i) & 1) != 0) memory.Count(bins, keys[i], from + i, mass);
      }
    }
  });
}

// Writes the positions of the chosen columns, and by the last block their number.
template <typename PositionOf>
__device__ __forceinline__ void WriteChosen(const ClusterCutMemory& memory, OwnColumns own, ClusterCut cut,
                                            uint32_t first, uint32_t* selected, uint32_t* count,
                                            PositionOf position_of) {
  if (cut.least == 0) cut.before = own.first + own.begin - first;
  const uint32_t places =
      EmitChosen(own, cut.before, memory.control->warp_sums, ChosenColumns{memory.keys, own.first, cut.least},
                 [&](uint32_t column, uint32_t place) { selected[place] = position_of(own.first + column); });
  if (threadIdx.x == 0 && ClusterRank() + 1 == ClusterBlocks()) *count = places;
}

// Takes the best of the scored columns: selected positions and their count.
template <ImportanceKind kKind, bool kByMass>
__global__ void __launch_bounds__(kMaxSelectThreads) ClusterSelectKernel(const __grid_constant__ SelectLaunch launch) {
  if (!kHasClusters) return;
  extern __shared__ __align__(128) uint8_t dynamic[];
  LetDependentsStart();
  const SelectParams& params = launch.params;
  const uint32_t rank = ClusterRank(), blocks = ClusterBlocks(), index = blockIdx.x / blocks;
  const ClusterSelectMemory memory = ClusterSelectMemory::Of(dynamic, blocks, kByMass);
  SelectControl& control = *memory.control;
  const SelectionList list = params.lists[index];
  const bool fits = list.last - list.first <= list.budget, by_mass = kByMass && !(params.takes_all_that_fit && fits);
  memory.Begin();
  WaitForInputs();
  const ScoredList<kKind> scored_list(launch, list, index, control);
  const ListColumns& scored = scored_list.columns;
  uint64_t most_mass = ~0ull;
  bool none = list.budget == 0 || scored.last <= scored.first;
  if constexpr (kByMass) {
    if (by_mass && !none) {
      most_mass = scored_list.MissingMass(params.min_mass, control);
      none = most_mass == 0;
    }
  }
  if (none) {
    if (threadIdx.x == 0 && rank == 0) params.counts[index] = 0;
    return;
  }
  const OwnColumns own = OwnPart(scored.first, scored.last, rank, blocks);
  ClusterCut cut{0, 0};
  if (by_mass || scored.last - scored.first > list.budget) {
    const auto choose = [&](const auto& mass) {
      ReadKeys<1>(scored_list.importance, scored.first, scored.last, own.first, memory.cut, OctaveBins(), mass);
      cut = CutOfCluster(memory.cut, own, scored.last - scored.first, list.budget, OctaveBins(), mass, rank, blocks);
    };
    if constexpr (kByMass) {
      choose(ColumnMass<kKind>{most_mass, scored_list.importance});
    } else {
      choose(NoMass());
    }
  }
  const uint32_t* granules = scored.granules;
  WriteChosen(memory.cut, own, cut, scored.first, params.selected + static_cast<int64_t>(index) * params.max_budget,
              &params.counts[index], [&](uint32_t column) {
                return granules == nullptr ? column : granules[column / kGranule] * kGranule + column % kGranule;
              });
}

}  // namespace winnow::device
