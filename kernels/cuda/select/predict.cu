#include "common/base/kv_layout.h"
#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/select/regression.cuh"
#include "kernels/device/params/predict.h"

namespace winnow::device {
namespace {

constexpr int kWarps = 4;

__device__ float WarpSum(float value) {
  for (int lane = 16; lane > 0; lane /= 2) value += __shfl_xor_sync(~0u, value, lane);
  return value;
}

// Rotates pairs (i, i + head_dim / 2), Hugging Face's "rotate half", from `in` to `out`; the calling threads share the
// pairs. The angle is the f32 product, as the reference computes it.
__device__ void RotateHead(const float* in, const RopeParams& rope, uint32_t position, int head_dim, int thread,
                           int threads, float* out) {
  const int half = head_dim / 2;
  for (int i = thread; i < half; i += threads) {
    float sine, cosine;
    sincosf(static_cast<float>(position) * rope.inv_freq[i], &sine, &cosine);
    cosine *= rope.attention_factor;
    sine *= rope.attention_factor;
    const float a = in[i], b = in[i + half];
    out[i] = a * cosine - b * sine;
    out[i + half] = b * cosine + a * sine;
  }
}

// One warp per (row, head).
__global__ void __launch_bounds__(kWarps * 32) RotateQueries(const RotateQueriesParams p) {
  WaitForInputs();
  LetDependentsStart();
  __shared__ float normed[kWarps][kMaxPredictHeadDim];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int item = blockIdx.x * kWarps + warp;
  if (item >= p.num_rows * p.num_heads) return;
  const uint32_t position = p.positions[item / p.num_heads];
  if (position == kNoPosition) return;
  const float* in = p.queries + static_cast<int64_t>(item) * p.head_dim;
  const float* bias = p.bias == nullptr ? nullptr : p.bias + item % p.num_heads * p.head_dim;
  float squares = 0;
  for (int d = lane; d < p.head_dim; d += 32) {
    const float x = in[d] + (bias == nullptr ? 0 : bias[d]);
    normed[warp][d] = x;
    squares += x * x;
  }
  if (p.norm_weight != nullptr) {
    const float inverse = 1 / sqrtf(WarpSum(squares) / static_cast<float>(p.head_dim) + p.norm_epsilon);
    for (int d = lane; d < p.head_dim; d += 32) normed[warp][d] *= inverse * p.norm_weight[d];
  }
  __syncwarp();
  RotateHead(normed[warp], p.rope, position, p.head_dim, lane, 32, p.out + static_cast<int64_t>(item) * p.head_dim);
}

__global__ void __launch_bounds__(kWarps * 32) StoreQueries(const StoreQueriesParams p) {
  WaitForInputs();
  LetDependentsStart();
  const int lane = threadIdx.x % 32;
  const int item = blockIdx.x * kWarps + threadIdx.x / 32;
  if (item >= p.num_rows * p.num_heads) return;
  const int row = item / p.num_heads;
  const uint32_t position = p.positions[row];
  if (position == kNoPosition) return;
  const float* in = p.queries + static_cast<int64_t>(item) * p.head_dim;
  float* out = p.rings.queries + p.sequences[row] * p.rings.sequence_stride +
               (static_cast<int64_t>(position % p.rings.capacity) * p.num_heads + item % p.num_heads) * p.head_dim;
  for (int d = lane; d < p.head_dim; d += 32) out[d] = in[d];
}

// One block per (row, head).
__global__ void __launch_bounds__(kRegressionThreads) PredictQueries(const PredictQueriesParams p) {
  WaitForInputs();
  LetDependentsStart();
  extern __shared__ float past[];  // [window + 1][head_dim + 1]: rows at different banks
  __shared__ float prediction[kMaxPredictHeadDim];
  __shared__ Regression regression;
  const int row = blockIdx.x / p.num_heads, head = blockIdx.x % p.num_heads;
  const uint32_t position = p.positions[row];
  if (position == kNoPosition) return;
  const uint32_t sequence = p.sequences[row];
  const uint32_t first = p.first_positions[sequence];
  const uint32_t held = position > first ? min(position - first, p.rings.capacity) : 0;
  const int count = static_cast<int>(min(p.window + 1, held));
  const float* ring = p.rings.queries + sequence * p.rings.sequence_stride;
  const int stride = p.head_dim + 1;
  for (int i = threadIdx.x / 32; i < count; i += kRegressionThreads / 32) {
    const uint32_t at = position - count + i;
    const float* query = ring + (static_cast<int64_t>(at % p.rings.capacity) * p.num_heads + head) * p.head_dim;
    if (p.post_rope) {
      RotateHead(query, p.rope, at, p.head_dim, threadIdx.x % 32, 32, past + i * stride);
      continue;
    }
    for (int d = threadIdx.x % 32; d < p.head_dim; d += 32) past[i * stride + d] = query[d];
  }
  __syncthreads();
  regression.Predict(past, stride, count, p.head_dim, p.weights, prediction);
  float* out = p.out + static_cast<int64_t>(blockIdx.x) * p.head_dim;
  if (!p.post_rope) {
    return RotateHead(prediction, p.rope, position, p.head_dim, threadIdx.x, blockDim.x, out);
  }
  for (int d = threadIdx.x; d < p.head_dim; d += blockDim.x) out[d] = prediction[d];
}

// Start of the recent window (RecentStart in common/selection/selection_spec.h).
__device__ uint32_t RecentStart(uint32_t position, uint32_t recent_tokens, uint32_t first) {
  const uint32_t length = position + 1;
  const uint32_t start = length > recent_tokens ? (length - recent_tokens) / kBlockTokens * kBlockTokens : 0;
  return max(start, first);
}

// A thread per (layer, row); one block also moves the plan on. Blocks read next_positions and only the last to finish
// may write it, so a single block does both: there are at most some thousand (layer, row)s.
__global__ void __launch_bounds__(1024) BeginPlan(const BeginPlanParams p) {
  WaitForInputs();
  LetDependentsStart();
  for (int item = threadIdx.x; item < p.num_layers * p.num_rows; item += blockDim.x) {
    const int layer = item / p.num_rows, row = item % p.num_rows;
    uint32_t position = p.next_positions[row];
    if (p.step_positions != nullptr && position != kNoPosition) position = p.step_positions[row];
    SelectionList* lists = p.lists + (static_cast<int64_t>(layer) * p.max_rows + row) * p.num_kv_heads;
    for (int head = 0; head < p.num_kv_heads; ++head) {
      const bool is_empty = position == kNoPosition;
      lists[head].num_keys = is_empty ? 0 : position;
      lists[head].last = is_empty ? lists[head].first : RecentStart(position, p.recent_tokens, lists[head].first);
      if (layer == 0) p.list_positions[row * p.num_kv_heads + head] = position;
    }
    if (layer == 0) p.positions[row] = position;
  }
  __syncthreads();
  for (int row = threadIdx.x; p.step_positions == nullptr && row < p.num_rows; row += blockDim.x) {
    if (p.next_positions[row] != kNoPosition) ++p.next_positions[row];
  }
  if (threadIdx.x == 0) ++*p.plan;
}

template <typename Params>
void LaunchWarps(Stream stream, void (*kernel)(Params), const Params& p) {
  const unsigned blocks = (p.num_rows * p.num_heads + kWarps - 1) / kWarps;
  LaunchDependent(kernel, {.grid = dim3(blocks), .threads = kWarps * 32}, stream, p);
}

void LaunchRotateQueries(Stream stream, const RotateQueriesParams& p) {
  LaunchWarps(stream, RotateQueries, p);
}

void LaunchStoreQueries(Stream stream, const StoreQueriesParams& p) {
  LaunchWarps(stream, StoreQueries, p);
}

void LaunchPredictQueries(Stream stream, const PredictQueriesParams& p) {
  const LaunchShape shape{.grid = dim3(p.num_rows * p.num_heads),
                          .threads = kRegressionThreads,
                          .shared_bytes = (p.window + 1) * static_cast<size_t>(p.head_dim + 1) * sizeof(float)};
  LaunchDependent(PredictQueries, shape, stream, p);
}

void LaunchBeginPlan(Stream stream, const BeginPlanParams& p) {
  LaunchDependent(BeginPlan, {.grid = dim3(1), .threads = 1024}, stream, p);
}

}  // namespace

const PredictKernels kPredictKernels = {.rotate_queries = LaunchRotateQueries,
                                        .store_queries = LaunchStoreQueries,
                                        .predict_queries = LaunchPredictQueries,
                                        .begin_plan = LaunchBeginPlan};

}  // namespace winnow::device
