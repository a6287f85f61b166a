#include <algorithm>

#include "common/base/check.h"
#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/device/row_math.cuh"
#include "kernels/cuda/latent/head_products.h"
#include "kernels/cuda/latent/latent.h"

namespace winnow::cuda {
namespace {

constexpr int kWarps = 4;

// Of turning pair i, the two elements at `stored`, and how far they turn.
struct TurningPair {
  float low, high, cosine, sine;

  __device__ TurningPair(const LatentAppendParams& p, const float* stored, const float* bias, float position, int i) {
    const int half = p.shape.rope_dim / 2;
    const int first = p.interleaved ? 2 * i : i, second = p.interleaved ? 2 * i + 1 : i + half;
    low = stored[first] + (bias != nullptr ? bias[first] : 0.0f);
    high = stored[second] + (bias != nullptr ? bias[second] : 0.0f);
    sincosf(__fmul_rn(position, p.rope_inv_freq[i]), &sine, &cosine);
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
    const TurningPair pair(p, stored + nope, nullptr, position, i);
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
  if (p.kv_mirror != nullptr) to[1] = static_cast<__nv_bfloat16*>(p.kv_mirror) + row * p.kv_mirror_stride;
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
    const TurningPair pair(p, latent + rank, bias, position, i);
    store(p.shape.rope_place(i), pair.RotatedLow(factor));
    store(p.shape.rope_place(i + p.shape.rope_dim / 2), pair.RotatedHigh(factor));
  }
}

// A warp to the row, and one to each head, which go round the warps of a row's blocks.
__global__ void __launch_bounds__(kWarps* kWarp) LatentAppendKernel(const LatentAppendParams p) {
  LetDependentsStart();
  WaitForInputs();
  const int64_t row = blockIdx.x;
  const float position = static_cast<float>(p.positions[row]);
  for (int item = blockIdx.y * kWarps + threadIdx.x / kWarp; item <= p.num_heads; item += gridDim.y * kWarps) {
    if (item == 0) {
      AppendRow(p, row, position);
    } else {
      TakeHead(p, row, item - 1, position);
    }
  }
}

void Append(Stream stream, const LatentAppendParams& params) {
  WINNOW_CHECK(params.shape.rank % kLatentPiece == 0 && params.shape.rope_dim % kLatentPiece == 0);
  WINNOW_CHECK(params.shape.key_dim() <= kMaxLatentKeyDim && params.nope_dim % 8 == 0);
  if (params.num_rows == 0) return;
  constexpr int kEnoughBlocks = 8192;
  const int blocks = std::clamp(kEnoughBlocks / params.num_rows, 1, params.num_heads / kWarps + 1);
  LatentAppendParams strided = params;
  if (strided.kv_mirror_stride == 0) strided.kv_mirror_stride = params.shape.key_dim();
  LaunchDependent(LatentAppendKernel, {.grid = dim3(params.num_rows, blocks), .threads = kWarps * kWarp}, stream,
                  strided);
}

}  // namespace

const LatentKernels kLatentKernels = {.append = Append, .head_products = HeadProducts};

}  // namespace winnow::cuda
