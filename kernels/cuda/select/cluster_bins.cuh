#pragma once
#include <cstdint>

#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/select/top_k_cut.cuh"

// Keys of a list in the shared memory of a cluster's blocks, each block's own columns, and the bins by which blocks
// tell each other what they have.

namespace winnow::device {

inline constexpr uint32_t kClusterBins = 1024;
inline constexpr int kClusterBinBits = 10;
inline constexpr uint32_t kClusterContested = 256;  // ranks of all blocks that are compared with one another
inline constexpr uint32_t kMaxClusterBlocks = 8;

// Bins of importances: 32 to an octave, from 2^-29 up to the 8 that a group may sum to; the lowest and the highest also
// hold what is beyond.
struct OctaveBins {
  static constexpr uint32_t kLow = 0x80000000u | (127 - 29) << 23;
  static constexpr int kShift = 23 - 5;
  __device__ __forceinline__ uint32_t Of(uint32_t key) const {
    return min((max(key, kLow) - kLow) >> kShift, kClusterBins - 1);
  }
  // The keys of a bin.
  __device__ __forceinline__ DigitRange Keys(uint32_t bin) const {
    const uint32_t low = kLow + (bin << kShift);
    return {.low = bin == 0 ? 0 : low, .high = bin == kClusterBins - 1 ? ~0u : low + ((1u << kShift) - 1)};
  }
};

// How many columns are chosen: the fewest that are `rows`, or hold `mass`.
struct NoMass {
  static constexpr bool kCounts = false;
  static constexpr uint64_t mass = 0;
  __device__ __forceinline__ uint64_t Of(uint32_t, uint32_t) const { return 0; }
};
template <ImportanceKind kKind>
struct ColumnMass {
  static constexpr bool kCounts = true;
  uint64_t mass;
  const Importance<kKind>& importance;
  __device__ __forceinline__ uint64_t Of(uint32_t key, uint32_t column) const {
    return MassOfColumn(importance, key, column);
  }
};
// Masses are counted by bin in three words of 15 bits each, of up to 2^17 columns.
inline constexpr int kMassWords = 3, kMassWordBits = 15;
inline constexpr uint32_t kMostMassColumns = 1u << 17;
inline constexpr uint32_t kHeldWords = 4;  // behind the bins: the mass of columns that are kept anyway, likewise

struct ClusterCutControl {
  struct Share {
    uint32_t contested, above;
  };
  alignas(8) uint64_t arrived;  // barrier of the bins that others add, one phase to a round
  uint64_t cut, mass_above;
  Share shares[kMaxClusterBlocks];  // of each block: how many columns near the cut, and surely chosen
  uint32_t bin, rows_above, rows_in;
  uint32_t own_contested, own_above;
  uint32_t lower_contested;  // that are chosen, of the blocks before
  uint32_t warp_sums[kMaxSelectWarps];
  uint64_t warp_masses[kMaxSelectWarps];
};

// Shared memory of a block.
struct ClusterCutMemory {
  ClusterCutControl* control;
  uint32_t* keys;       // of the block's columns
  uint32_t* own_bins;   // [kClusterBins] counts; by mass, [kMassWords, kClusterBins] masses and [kHeldWords] behind
  uint32_t* all_bins;   // the same of the other blocks
  uint64_t* contested;  // [blocks, kClusterContested] ranks
  uint32_t words;       // of bins

  static constexpr uint32_t Words(bool by_mass) {
    return by_mass ? (1 + kMassWords) * kClusterBins + kHeldWords : kClusterBins;
  }
  static constexpr size_t Bytes(uint32_t blocks, uint32_t block_columns, bool by_mass) {
    return blocks * kClusterContested * sizeof(uint64_t) + (2 * Words(by_mass) + block_columns) * sizeof(uint32_t);
  }
  // `base` is aligned to 16 bytes.
  __device__ __forceinline__ void Place(uint8_t* base, uint32_t blocks, bool by_mass) {
    words = Words(by_mass);
    contested = reinterpret_cast<uint64_t*>(base);
    own_bins = reinterpret_cast<uint32_t*>(contested + blocks * kClusterContested);
    all_bins = own_bins + words;
    keys = all_bins + words;
  }
  // All threads, before a ClusterSync behind which columns are counted and cut.
  __device__ __forceinline__ void Clear() const {
    for (uint32_t i = threadIdx.x; i < words; i += blockDim.x) own_bins[i] = all_bins[i] = 0;
    if (threadIdx.x == 0) control->own_contested = control->own_above = control->lower_contested = 0;
    FenceSharedForCluster();
  }
  // Most columns may lie in the lowest bin, all of one address: what is in no other does, without being counted.
  template <typename Bins, typename Mass>
  __device__ __forceinline__ void Count(const Bins& bins, uint32_t key, uint32_t column, const Mass& mass) const {
    const uint32_t bin = bins.Of(key);
    if (bin != 0) Add(bin, key, column, mass);
  }
  template <typename Mass>
  __device__ __forceinline__ void Add(uint32_t bin, uint32_t key, uint32_t column, const Mass& mass) const {
    atomicAdd(&own_bins[bin], 1u);
    if constexpr (Mass::kCounts) {
      AddMass(own_bins + kClusterBins + bin, kClusterBins, mass.Of(key, column));
    }
  }
  // Mass that is held without being chosen. Whole warps.
  __device__ __forceinline__ void AddHeld(uint64_t mass) const {
    if (__ballot_sync(~0u, mass != 0) == 0) return;
    for (int step = 16; step > 0; step /= 2) mass += __shfl_xor_sync(~0u, mass, step);
    if (threadIdx.x % 32 == 0) AddMass(own_bins + (1 + kMassWords) * kClusterBins, 1, mass);
  }
  __device__ __forceinline__ uint64_t Held() const {
    uint64_t held = 0;
#pragma unroll
    for (int i = 0; i < kMassWords; ++i) {
      const uint32_t at = (1 + kMassWords) * kClusterBins + i;
      held += uint64_t{own_bins[at] + all_bins[at]} << i * kMassWordBits;
    }
    return held;
  }

 private:
  static __device__ __forceinline__ void AddMass(uint32_t* words, uint32_t stride, uint64_t mass) {
#pragma unroll
    for (int i = 0; i < kMassWords; ++i) {
      const uint64_t left = mass >> i * kMassWordBits;
      const auto part = static_cast<uint32_t>(i + 1 < kMassWords ? left & ((1u << kMassWordBits) - 1) : left);
      if (part != 0) atomicAdd(&words[i * stride], part);
    }
  }
};

}  // namespace winnow::device
