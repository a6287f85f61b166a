#pragma once
#include <cfloat>
#include <cstdint>

#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/select/importance.cuh"
#include "kernels/cuda/select/unit_stream.cuh"

// What becomes of the scores that a cluster's warps find (UnitStream). A lane gets two columns, eight apart, of two
// queries.

namespace winnow::device {

// The greatest bound of each page, to every block of the cluster.
struct PageSink {
  uint32_t* keys;
  bool is_shared;  // otherwise one array in global memory
  int group;
  uint32_t blocks, end;
  uint32_t least = ~0u, greatest = 0;  // of the keys that were added

  // To every block's words, of which others know the offsets.
  __device__ __forceinline__ void End(uint32_t* least_of_all, uint32_t* greatest_of_all) const {
    const uint32_t of_warp[2] = {__reduce_min_sync(~0u, least), __reduce_max_sync(~0u, greatest)};
    const uint32_t lane = threadIdx.x % 32;
    if (lane < blocks) {
      atomicMin(OfRank(least_of_all, lane), of_warp[0]);
      atomicMax(OfRank(greatest_of_all, lane), of_warp[1]);
    }
  }

  __device__ __forceinline__ void Add(uint32_t first, const float (&scores)[2][2]) {
    const int lane = threadIdx.x % 32, query = lane % 4 * 2;
    float most[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      most[half] = query < group ? scores[half][0] : -INFINITY;
      if (query + 1 < group) most[half] = fmaxf(most[half], scores[half][1]);
    }
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
      most[0] = fmaxf(most[0], __shfl_xor_sync(~0u, most[0], step));
      most[1] = fmaxf(most[1], __shfl_xor_sync(~0u, most[1], step));
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t page = first + half * 8;
      if (page >= end) continue;
      const uint32_t key = OrderedKey(most[half]);
      least = min(least, key), greatest = max(greatest, key);
      if (is_shared) {
        for (uint32_t rank = lane % 4; rank < blocks; rank += 4) *OfRank(keys + page, rank) = key;
      } else if (lane % 4 == 0) {
        keys[page] = key;
      }
    }
  }
};

// Scores of the block's columns, and the greatest of each query among those below `summed`.
struct KeySink {
  float* scores;  // [group, stride]
  uint32_t stride, begin, summed;
  int group;
  float greatest[2] = {-INFINITY, -INFINITY};  // of the lane's queries

  __device__ __forceinline__ void Add(uint32_t column, const float (&values)[2][2]) {
    const int query = threadIdx.x % 4 * 2;
    float* at = scores + query * stride + (column - begin);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (query + i < group) {
        at[i * stride] = values[0][i];
        at[i * stride + 8] = values[1][i];
      }
      if (column < summed) greatest[i] = fmaxf(greatest[i], values[0][i]);
      if (column + 8 < summed) greatest[i] = fmaxf(greatest[i], values[1][i]);
    }
  }
  // To the block's words, as keys.
  __device__ __forceinline__ void End(uint32_t* greatest_of_block) const {
    uint32_t key[2] = {OrderedKey(greatest[0]), OrderedKey(greatest[1])};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int step = 4; step < 32; step *= 2) key[i] = max(key[i], __shfl_xor_sync(~0u, key[i], step));
      if (threadIdx.x % 32 < 4) atomicMax(&greatest_of_block[threadIdx.x % 4 * 2 + i], key[i]);
    }
  }
};

}  // namespace winnow::device
