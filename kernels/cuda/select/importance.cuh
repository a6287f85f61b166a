#pragma once
#include <cfloat>
#include <cstdint>

#include "kernels/cuda/select/unit_scores.cuh"

namespace winnow::device {

// Larger floats have larger keys; -0 and +0 have one key, as they compare equal. Not for NaN.
__device__ __forceinline__ uint32_t OrderedKey(float value) {
  const uint32_t bits = __float_as_uint(value + 0.0f);
  return bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u);
}
__device__ __forceinline__ float FromOrderedKey(uint32_t key) {
  return __uint_as_float((key & 0x80000000u) != 0 ? key ^ 0x80000000u : ~key);
}

enum class ImportanceKind : uint8_t { kValues, kSoftmaxSum, kMax, kMean };

// What the columns of a list are chosen by, from the scores of its queries. Never NaN.
template <ImportanceKind kKind>
struct Importance {
  const float* scores;  // [group, stride]; kValues: the values
  int64_t stride;       // a multiple of 4
  const float* lse;     // [8] log2 of the softmax sums; +infinity where no score is finite. Shared memory
  uint32_t scored_end;  // columns at and above count as the most important ones
  int group;            // 1 with kValues
  bool aligned;         // four columns of a row may be loaded at once

  __device__ __forceinline__ float At(uint32_t column) const {
    if (column >= scored_end) return FLT_MAX;
    float value = kKind == ImportanceKind::kSoftmaxSum ? 0 : scores[column];
    if constexpr (kKind != ImportanceKind::kValues) {
#pragma unroll
      for (int q = kKind == ImportanceKind::kSoftmaxSum ? 0 : 1; q < kMaxGroup; ++q) {
        if (q < group) Add(value, scores[q * stride + column], q);
      }
    }
    return Finished(value);
  }

  // Columns [column, column + 4), a multiple of 4. Those at and above `end` are not to be used.
  __device__ __forceinline__ void Four(uint32_t column, uint32_t end, float (&values)[4]) const {
    if (!aligned || column + 4 > min(end, scored_end)) {
#pragma unroll 1
      for (int i = 0; i < 4; ++i) {
        const float value = column + i < end ? At(column + i) : 0;
        // An array that is indexed at run time would leave the registers.
        if (i == 0) values[0] = value;
        if (i == 1) values[1] = value;
        if (i == 2) values[2] = value;
        if (i == 3) values[3] = value;
      }
      return;
    }
    constexpr int kFirst = kKind == ImportanceKind::kSoftmaxSum ? 0 : 1;
    const float4 first = kFirst == 0 ? float4{0, 0, 0, 0} : *reinterpret_cast<const float4*>(scores + column);
    values[0] = first.x, values[1] = first.y, values[2] = first.z, values[3] = first.w;
    if constexpr (kKind != ImportanceKind::kValues) {
#pragma unroll
      for (int q = kFirst; q < kMaxGroup; ++q) {
        if (q >= group) break;
        const float4 s = *reinterpret_cast<const float4*>(scores + q * stride + column);
        Add(values[0], s.x, q);
        Add(values[1], s.y, q);
        Add(values[2], s.z, q);
        Add(values[3], s.w, q);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] = Finished(values[i]);
  }

 private:
  __device__ __forceinline__ void Add(float& value, float score, int query) const {
    if constexpr (kKind == ImportanceKind::kSoftmaxSum) value += Exp2(fmaf(score, kLog2E, -lse[query]));
    if constexpr (kKind == ImportanceKind::kMax) value = value < score ? score : value;
    if constexpr (kKind == ImportanceKind::kMean) value += score;
  }
  __device__ __forceinline__ float Finished(float value) const {
    if constexpr (kKind == ImportanceKind::kSoftmaxSum) return value >= 0 && value < INFINITY ? value : 0;
    if constexpr (kKind == ImportanceKind::kMean) value = __fdiv_rn(value, static_cast<float>(group));
    return kKind != ImportanceKind::kValues && value != value ? -FLT_MAX : value;
  }
};

// The share of the softmaxes that a column holds, summed over the queries, whatever it is chosen by.
template <ImportanceKind kKind>
__device__ __forceinline__ float SoftmaxSumOf(const Importance<kKind>& importance, uint32_t column) {
  const Importance<ImportanceKind::kSoftmaxSum> sums{importance.scores, importance.stride, importance.lse, ~0u,
                                                     importance.group,  importance.aligned};
  return sums.At(column);
}

}  // namespace winnow::device
