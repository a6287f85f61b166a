#include <algorithm>

#include "common/base/check.h"
#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/device/row_math.cuh"
#include "kernels/cuda/latent/head_products.h"
#include "kernels/device/params/latent.h"
#include "kernels/indexer.h"

namespace winnow::device {
namespace {

constexpr int kWarps = 4;

// Where the two elements of turning pair i are stored.
struct StoredPair {
  int first, second;

  __device__ StoredPair(bool interleaved, int half, int i)
      : first(interleaved ? 2 * i : i), second(interleaved ? 2 * i + 1 : i + half) {}
};

// Two elements that turn, and how far.
struct TurningPair {
  float low, high, cosine, sine;

  __device__ TurningPair(float low, float high, float position, float inv_freq) : low(low), high(high) {
    sincosf(__fmul_rn(position, inv_freq), &sine, &cosine);
  }
  // Pair i of those at `stored`.
  __device__ static TurningPair Of(const LatentAppendParams& p, const float* stored, const float* bias, float position,
                                   int i) {
    const StoredPair at(p.interleaved, p.shape.rope_dim / 2, i);
    const auto element = [&](int place) { return stored[place] + (bias != nullptr ? bias[place] : 0.0f); };
    return {element(at.first), element(at.second), position, p.rope_inv_freq[i]};
  }
  __device__ float RotatedLow(float factor) const { return low * (cosine * factor) - high * (sine * factor); }
  __device__ float RotatedHigh(float factor) const { return high * (cosine * factor) + low * (sine * factor); }
};

__device__ void TakeHead(const LatentAppendParams& p, int64_t row, int head, float position) {
  const int lane = threadIdx.x % kWarp, nope = p.nope_dim;
  const float* const stored = p.heads + row * p.heads_stride + head * (nope + p.shape.rope_dim);
  const int64_t at = row * p.num_heads + head;
  for (int i = lane * 2; i < nope; i += 2 * kWarp) {
    *reinterpret_cast<uint32_t*>(static_cast<__nv_bfloat16*>(p.nope) + at * nope + i) =
        PackBf16(stored[i], stored[i + 1]);
  }
  const int64_t first = at * p.shape.key_dim();
  for (int i = lane; i < p.shape.rope_dim / 2; i += kWarp) {
    const TurningPair pair = TurningPair::Of(p, stored + nope, nullptr, position, i);
    const int64_t low = first + p.shape.rope_place(i), high = first + p.shape.rope_place(i + p.shape.rope_dim / 2);
    if (p.q_pre_rope != nullptr) p.q_pre_rope[low] = pair.low, p.q_pre_rope[high] = pair.high;
    const float rotated[2] = {pair.RotatedLow(1), pair.RotatedHigh(1)};
    if (p.q != nullptr) p.q[low] = rotated[0], p.q[high] = rotated[1];
    if (p.q_bf16 == nullptr) continue;
    static_cast<__nv_bfloat16*>(p.q_bf16)[low] = __float2bfloat16(rotated[0]);
    static_cast<__nv_bfloat16*>(p.q_bf16)[high] = __float2bfloat16(rotated[1]);
  }
}

__device__ void AppendRow(const LatentAppendParams& p, int64_t row, float position) {
  constexpr int kMost = (kMaxLatentKeyDim + kWarp - 1) / kWarp;
  const int lane = threadIdx.x % kWarp, rank = p.shape.rank;
  const float* const latent = p.latents + row * p.latents_stride;
  __nv_bfloat16* to[2] = {};
  if (p.kv_destinations != nullptr) to[0] = static_cast<__nv_bfloat16*>(p.kv_destinations[row]);
  if (p.kv_copy != nullptr) to[1] = static_cast<__nv_bfloat16*>(p.kv_copy) + row * p.kv_copy_stride;
  float x[kMost];
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    const int at = i * kWarp + lane;
    x[i] = at < rank ? latent[at] + (p.latent_bias != nullptr ? p.latent_bias[at] : 0.0f) : 0.0f;
    sum += x[i] * x[i];
  }
  sum = WarpSum(sum);
  const float inverse = 1 / sqrtf(sum / static_cast<float>(rank) + p.norm_epsilon);
  const auto store = [&](int place, float value) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (to[i] != nullptr) to[i][place] = __float2bfloat16(value);
    }
  };
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    const int at = i * kWarp + lane;
    if (at < rank) store(p.shape.latent_place(at), x[i] * inverse * p.norm_weight[at]);
  }
  const float factor = p.rope_attention_factor * p.rope_attention_factor;
  const float* const bias = p.latent_bias != nullptr ? p.latent_bias + rank : nullptr;
  for (int i = lane; i < p.shape.rope_dim / 2; i += kWarp) {
    const TurningPair pair = TurningPair::Of(p, latent + rank, bias, position, i);
    store(p.shape.rope_place(i), pair.RotatedLow(factor));
    store(p.shape.rope_place(i + p.shape.rope_dim / 2), pair.RotatedHigh(factor));
  }
}

// Elements of an index key or query, by lane, and what the turning ones become.
class IndexHead {
 public:
  static constexpr int kMost = kMaxIndexDim / kWarp;

  float x[kMost] = {};  // element kWarp * i + lane

  // Element `place` of the head, for one lane. By the whole warp.
  __device__ float At(int place) const {
    float value = 0;
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      const float other = __shfl_sync(~0u, x[i], place % kWarp);
      if (place / kWarp == i) value = other;
    }
    return value;
  }
  // Calls store(place, value) of all elements of the head.
  template <typename Store>
  __device__ void Rotate(const LatentAppendParams& p, float position, const Store& store) const {
    const int lane = threadIdx.x % kWarp, rope_dim = p.shape.rope_dim, half = rope_dim / 2;
    for (int first = 0; first < half; first += kWarp) {
      const int i = min(first + lane, half - 1);
      const StoredPair at(p.index.interleaved, half, i);
      const float low = At(at.first), high = At(at.second);
      const TurningPair pair(low, high, position, p.rope_inv_freq[i]);
      if (first + lane >= half) continue;
      store(i, pair.RotatedLow(p.rope_attention_factor));
      store(i + half, pair.RotatedHigh(p.rope_attention_factor));
    }
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      const int place = i * kWarp + lane;
      if (place >= rope_dim && place < p.index.dim) store(place, x[i]);
    }
  }
};

__device__ void TakeIndexHead(const LatentAppendParams& p, int64_t row, int head, float position) {
  const IndexAppendParams& index = p.index;
  const int lane = threadIdx.x % kWarp;
  const float* const stored = index.heads + row * index.heads_stride + head * index.dim;
  float* const to = index.queries + row * index.num_heads * (index.dim + 1) + head * index.dim;
  IndexHead query;
#pragma unroll
  for (int i = 0; i < IndexHead::kMost; ++i) {
    const int place = i * kWarp + lane;
    if (place < index.dim) query.x[i] = stored[place];
  }
  query.Rotate(p, position, [&](int place, float value) { to[place] = __bfloat162float(__float2bfloat16(value)); });
}

// The index key, and the weights of the heads.
__device__ void AppendIndexKey(const LatentAppendParams& p, int64_t row, float position) {
  const IndexAppendParams& index = p.index;
  const int lane = threadIdx.x % kWarp, key_dim = p.shape.key_dim();
  const float* const stored = index.keys + row * index.keys_stride;
  IndexHead key;
  float sum = 0;
#pragma unroll
  for (int i = 0; i < IndexHead::kMost; ++i) {
    const int place = i * kWarp + lane;
    if (place < index.dim) key.x[i] = stored[place];
    sum += key.x[i];
  }
  const float mean = WarpSum(sum) / static_cast<float>(index.dim);
  float squares = 0;
#pragma unroll
  for (int i = 0; i < IndexHead::kMost; ++i) {
    key.x[i] -= mean;
    if (i * kWarp + lane < index.dim) squares += key.x[i] * key.x[i];
  }
  const float inverse = 1 / sqrtf(WarpSum(squares) / static_cast<float>(index.dim) + kIndexNormEpsilon);
#pragma unroll
  for (int i = 0; i < IndexHead::kMost; ++i) {
    const int place = i * kWarp + lane;
    if (place < index.dim) key.x[i] = key.x[i] * inverse * index.norm_weight[place] + index.norm_bias[place];
  }
  __nv_bfloat16* to[2] = {};
  if (p.kv_destinations != nullptr) to[0] = static_cast<__nv_bfloat16*>(p.kv_destinations[row]);
  if (p.kv_copy != nullptr) to[1] = static_cast<__nv_bfloat16*>(p.kv_copy) + row * p.kv_copy_stride;
  key.Rotate(p, position, [&](int place, float value) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (to[i] != nullptr) to[i][key_dim + place] = __float2bfloat16(value);
    }
  });
  const int64_t queries = index.num_heads * static_cast<int64_t>(index.dim);
  float* const weights = index.queries + row * (queries + index.num_heads) + queries;
  for (int head = lane; head < index.num_heads; head += kWarp) {
    weights[head] = stored[index.dim + head] * index.weight_factor;
  }
}

// A warp to the row, and one to each head, which go round the warps of a row's blocks; behind those of attention what
// an indexer has.
__global__ void __launch_bounds__(kWarps* kWarp) LatentAppendKernel(const LatentAppendParams p) {
  LetDependentsStart();
  WaitForInputs();
  const int64_t row = blockIdx.x;
  const float position = static_cast<float>(p.positions[row]);
  const int index_items = p.index.num_heads > 0 ? p.index.num_heads + 1 : 0, items = 1 + p.num_heads + index_items;
  for (int item = blockIdx.y * kWarps + threadIdx.x / kWarp; item < items; item += gridDim.y * kWarps) {
    if (item == 0) {
      AppendRow(p, row, position);
    } else if (item <= p.num_heads) {
      TakeHead(p, row, item - 1, position);
    } else if (item == p.num_heads + 1) {
      AppendIndexKey(p, row, position);
    } else {
      TakeIndexHead(p, row, item - p.num_heads - 2, position);
    }
  }
}

void Append(Stream stream, const LatentAppendParams& params) {
  WINNOW_CHECK(params.shape.rank % kLatentPiece == 0 && params.shape.rope_dim % kLatentPiece == 0);
  WINNOW_CHECK(params.shape.key_dim() <= kMaxLatentKeyDim && params.nope_dim % 8 == 0);
  WINNOW_CHECK(params.index.num_heads == 0 ||
               (params.index.dim <= kMaxIndexDim && params.index.dim >= params.shape.rope_dim));
  if (params.num_rows == 0) return;
  constexpr int kEnoughBlocks = 8192;
  const int blocks =
      std::clamp(kEnoughBlocks / params.num_rows, 1, (params.num_heads + params.index.num_heads) / kWarps + 1);
  LatentAppendParams strided = params;
  if (strided.kv_copy_stride == 0) strided.kv_copy_stride = params.shape.key_dim() + params.index.dim;
  LaunchDependent(LatentAppendKernel, {.grid = dim3(params.num_rows, blocks), .threads = kWarps * kWarp}, stream,
                  strided);
}

}  // namespace

const LatentKernels kLatentKernels = {.append = Append, .head_products = HeadProducts};

}  // namespace winnow::device
