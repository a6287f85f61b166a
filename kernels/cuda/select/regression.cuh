#pragma once
#include <cstdint>

#include "kernels/device/params/predict.h"

namespace winnow::device {

inline constexpr int kMaxPredictHeadDim = 256;
inline constexpr int kMaxBlendWindow = 32;  // the equations of a window fit one warp
inline constexpr int kRegressionThreads = 256;
inline constexpr int kLanesPerDot = 8;
inline constexpr double kRidge = 1e-3;

// The regression of predict.h by one block of kRegressionThreads; an instance lies in its shared memory.
class Regression {
 public:
  // `past` [count][stride] in shared memory, oldest first. Fills prediction[head_dim]; zeros when count is 0. All
  // threads of the block call it, and may read the prediction when it returns.
  __device__ void Predict(const float* past, int stride, int count, int head_dim, BlendWeights weights,
                          float* prediction) {
    const int w = count - 1;
    if (w > 0) {
      FillGram(past, stride, w, head_dim);
      __syncthreads();
      if (threadIdx.x < 32) Solve(w, weights);
    } else if (threadIdx.x == 0) {
      is_solved_ = false;
    }
    __syncthreads();
    for (int d = threadIdx.x; d < head_dim; d += kRegressionThreads) {
      double sum = 0;
      if (is_solved_) {
        for (int i = 0; i < w; ++i) sum += v_[i] * past[(i + 1) * stride + d];
      } else if (count > 0) {
        sum = past[w * stride + d];
      }
      prediction[d] = static_cast<float>(sum);
    }
    __syncthreads();
  }

 private:
  // Lower triangle of the dot products of all count queries; the last row are those with the newest. Each is summed by
  // kLanesPerDot lanes in f64 over exact products, in an order that depends on head_dim alone.
  __device__ void FillGram(const float* past, int stride, int w, int head_dim) {
    const int pairs = (w + 1) * (w + 2) / 2 - 1, part = threadIdx.x % kLanesPerDot;
    constexpr int kDots = kRegressionThreads / kLanesPerDot;
    for (int begin = 0; begin < pairs; begin += kDots) {
      const int pair = min(begin + static_cast<int>(threadIdx.x) / kLanesPerDot, pairs - 1);
      int i = 0;
      while ((i + 1) * (i + 2) / 2 <= pair) ++i;
      const int j = pair - i * (i + 1) / 2;
      const float *a = past + i * stride, *b = past + j * stride;
      double sum = 0;
      for (int d = part; d < head_dim; d += kLanesPerDot) sum += static_cast<double>(a[d]) * b[d];
      for (int lane = kLanesPerDot / 2; lane > 0; lane /= 2) sum += __shfl_xor_sync(~0u, sum, lane);
      if (part == 0) a_[i][j] = sum;
    }
  }

  // By one warp: lane i has row i.
  __device__ void Solve(int w, BlendWeights weights) {
    const int lane = threadIdx.x;
    double trace = 0;
    for (int i = 0; i < w; ++i) trace += a_[i][i];
    double b = lane < w ? a_[w][lane] : 0;
    __syncwarp();
    if (lane < w) a_[lane][lane] += kRidge * trace / w;
    __syncwarp();
    const bool is_positive = Factor(w, lane);
    if (is_positive) b = Substitute(w, lane, b);
    if (is_positive) b = Normalised(w, lane, weights, b);
    if (lane < w) v_[lane] = b;
    if (lane == 0) is_solved_ = is_positive;
  }

  // The diagonal gets the inverses of that of the factor.
  __device__ bool Factor(int w, int lane) {
    for (int j = 0; j < w; ++j) {
      double sum = 0;
      if (lane >= j && lane < w) {
        sum = a_[lane][j];
        for (int k = 0; k < j; ++k) sum -= a_[lane][k] * a_[j][k];
      }
      const double diagonal = __shfl_sync(~0u, sum, j);
      if (!(diagonal > 0) || !isfinite(diagonal)) return false;
      const double inverse = rsqrt(diagonal);
      __syncwarp();
      if (lane >= j && lane < w) a_[lane][j] = lane == j ? inverse : sum * inverse;
      __syncwarp();
    }
    return true;
  }

  __device__ double Substitute(int w, int lane, double b) const {
    for (int k = 0; k < w; ++k) {
      if (lane == k) b *= a_[k][k];
      const double solved = __shfl_sync(~0u, b, k);
      if (lane > k && lane < w) b -= a_[lane][k] * solved;
    }
    for (int k = w - 1; k >= 0; --k) {
      if (lane == k) b *= a_[k][k];
      const double solved = __shfl_sync(~0u, b, k);
      if (lane < k) b -= a_[k][lane] * solved;
    }
    return b;
  }

  __device__ static double Normalised(int w, int lane, BlendWeights weights, double v) {
    if (weights == BlendWeights::kRidge) return v;
    const bool is_softmax = weights == BlendWeights::kSoftmax;
    if (is_softmax) {
      double largest = lane < w ? v : -INFINITY;
      for (int other = 16; other > 0; other /= 2) largest = fmax(largest, __shfl_xor_sync(~0u, largest, other));
      v = exp(v - largest);
    }
    v = lane < w && v > 0 ? v : 0;
    double sum = v;
    for (int other = 16; other > 0; other /= 2) sum += __shfl_xor_sync(~0u, sum, other);
    return v / (is_softmax ? sum : fmax(sum, 1e-6));
  }

  double a_[kMaxBlendWindow + 1][kMaxBlendWindow + 1];
  double v_[kMaxBlendWindow];
  bool is_solved_;
};

}  // namespace winnow::device
