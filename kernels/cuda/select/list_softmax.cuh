#pragma once
#include <cstdint>

#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/select/list_memory.cuh"

namespace winnow::device {

// Softmaxes are summed as integers, so that sums depend on the columns alone and not on who adds them: 2^(x - greatest)
// in units of 2^-44, without conversions, from the bits of floats between 2 and 4.
inline constexpr int kSumBits = 44;
class ExponentialSum {
 public:
  // At most 31 numbers from 0 to 1 (and rounding) a thread.
  __device__ __forceinline__ void Add(float e) {
    const float high = e + 2;
    high_ += __float_as_uint(high) - 0x40000000u;
    low_ += __float_as_int(fmaf(e - (high - 2), 0x1p22f, 3.0f)) - 0x40400000;
  }
  __device__ __forceinline__ uint64_t OfWarp() const {
    return (uint64_t{__reduce_add_sync(~0u, high_)} << 22) + static_cast<int64_t>(__reduce_add_sync(~0u, low_));
  }

 private:
  uint32_t high_ = 0;  // in 2^-22
  int low_ = 0;        // in 2^-44
};
inline constexpr uint32_t kMostBlockColumns = 28 * kListThreads;

// Tells all blocks of the cluster what `own` [8] holds: as row `rank` of their `all` [blocks][8]. All threads, behind a
// barrier, before a ClusterSync.
template <typename T>
__device__ __forceinline__ void TellQueries(const T* own, T (*all)[kMaxGroup], uint32_t rank, uint32_t blocks) {
  if (threadIdx.x >= blocks * kMaxGroup) return;
  *OfRank(&all[rank][threadIdx.x % kMaxGroup], threadIdx.x / kMaxGroup) = own[threadIdx.x % kMaxGroup];
}

// Replaces the scores of a block's columns by 2^(x - greatest) of their query, x = score * log2(e), and tells all
// blocks the sums over the first `summed`. All threads; ends with a ClusterSync.
__device__ __forceinline__ void SumExponentials(const ListMemory& memory, int group, uint32_t columns, uint32_t summed,
                                                uint32_t rank, uint32_t blocks) {
  ListControl& control = memory.control;
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll 1
  for (int q = 0; q < group; ++q) {
    uint32_t greatest = 0;
    for (uint32_t block = 0; block < blocks; ++block) greatest = max(greatest, control.greatest[block][q]);
    const float largest = FromOrderedKey(greatest) * kLog2E;
    const float reference = largest > -INFINITY && largest < INFINITY ? largest : 0;
    ExponentialSum sum;
    for (uint32_t column = 4 * threadIdx.x; column < columns; column += 4 * kListThreads) {
      float4* const at = reinterpret_cast<float4*>(memory.scores + q * memory.score_stride + column);
      const float4 x = *at;
      const float4 e = {Exp2(fmaf(x.x, kLog2E, -reference)), Exp2(fmaf(x.y, kLog2E, -reference)),
                        Exp2(fmaf(x.z, kLog2E, -reference)), Exp2(fmaf(x.w, kLog2E, -reference))};
      *at = e;
      const float values[4] = {e.x, e.y, e.z, e.w};
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) sum.Add(column + i < summed ? values[i] : 0);
    }
    const uint64_t of_warp = sum.OfWarp();
    if (lane == 0) control.warp_sums[warp][q] = of_warp;
  }
  __syncthreads();
  if (threadIdx.x < blocks * kMaxGroup && threadIdx.x % kMaxGroup < group) {
    uint64_t sum = 0;
#pragma unroll
    for (int w = 0; w < kListWarps; ++w) sum += control.warp_sums[w][threadIdx.x % kMaxGroup];
    *OfRank(&control.sums[rank][threadIdx.x % kMaxGroup], threadIdx.x / kMaxGroup) = sum;
  }
  ClusterSync();
}

}  // namespace winnow::device
