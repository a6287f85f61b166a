#pragma once
#include <cfloat>
#include <cstdint>

#include "kernels/cuda/unit_scores.cuh"

namespace winnow::cuda {

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
struct Importance {
  const float* scores;  // [group, stride]; kValues: the values
  int64_t stride;       // a multiple of 4, but for kValues
  const float* lse;     // [8] log2 of the softmax sums; +infinity where no score is finite
  uint32_t scored_end;  // columns at and above count as the most important ones
  int group;
  ImportanceKind kind;
  bool aligned;  // four columns of a row may be loaded at once

  __device__ float SoftmaxSum(uint32_t column) const {
    float sum = 0;
    for (int q = 0; q < group; ++q) sum += Exp2(fmaf(scores[q * stride + column], kLog2E, -lse[q]));
    return sum >= 0 && sum < INFINITY ? sum : 0;
  }

  __device__ float At(uint32_t column) const {
    if (column >= scored_end) return FLT_MAX;
    if (kind == ImportanceKind::kSoftmaxSum) return SoftmaxSum(column);
    float value = scores[column];
    for (int q = 1; q < group; ++q) {
      const float score = scores[q * stride + column];
      value = kind == ImportanceKind::kMax ? (value < score ? score : value) : value + score;
    }
    return Finished(value);
  }

  // Columns [column, column + 4), a multiple of 4. Those at and above `end` are not to be used.
  __device__ void Four(uint32_t column, uint32_t end, float (&values)[4]) const {
    if (!aligned || column + 4 > min(end, scored_end)) {
#pragma unroll
      for (int i = 0; i < 4; ++i) values[i] = column + i < end ? At(column + i) : 0;
      return;
    }
    if (kind == ImportanceKind::kSoftmaxSum) {
      values[0] = values[1] = values[2] = values[3] = 0;
#pragma unroll 2
      for (int q = 0; q < group; ++q) {
        const float4 s = *reinterpret_cast<const float4*>(scores + q * stride + column);
        const float lse_q = lse[q];
        values[0] += Exp2(fmaf(s.x, kLog2E, -lse_q));
        values[1] += Exp2(fmaf(s.y, kLog2E, -lse_q));
        values[2] += Exp2(fmaf(s.z, kLog2E, -lse_q));
        values[3] += Exp2(fmaf(s.w, kLog2E, -lse_q));
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) values[i] = values[i] >= 0 && values[i] < INFINITY ? values[i] : 0;
      return;
    }
    const float4 s = *reinterpret_cast<const float4*>(scores + column);
    values[0] = s.x, values[1] = s.y, values[2] = s.z, values[3] = s.w;
    if (kind == ImportanceKind::kValues) return;
    for (int q = 1; q < group; ++q) {
      const float4 next = *reinterpret_cast<const float4*>(scores + q * stride + column);
      const float more[4] = {next.x, next.y, next.z, next.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        values[i] = kind == ImportanceKind::kMax ? (values[i] < more[i] ? more[i] : values[i]) : values[i] + more[i];
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] = Finished(values[i]);
  }

 private:
  __device__ float Finished(float value) const {
    if (kind == ImportanceKind::kMean) value = __fdiv_rn(value, static_cast<float>(group));
    return kind != ImportanceKind::kValues && value != value ? -FLT_MAX : value;
  }
};

}  // namespace winnow::cuda
