#include <cuda_bf16.h>

#include "common/base/check.h"
#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/device/row_math.cuh"
#include "kernels/cuda/latent/head_products.h"
#include "kernels/cuda/matmul/matmul_mma.cuh"

// W on the M side of mma, 16 outputs to a warp, rows of x on the N side. Operands go from memory straight to registers:
// of 32 of k a lane takes 8 that follow each other, for two steps, an order of k that both operands share.
namespace winnow::cuda {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr int kOutputs = 16 * kWarps;
constexpr int kK = 32;

// Grid: tiles of outputs, heads, tiles of 8 * kGroups rows.
template <int kGroups>
__global__ void __launch_bounds__(kThreads) HeadProductsKernel(const HeadProductsParams p) {
  const int lane = threadIdx.x % 32, line = lane / 4, piece = lane % 4 * 8;
  const int head = blockIdx.y, first_out = blockIdx.x * kOutputs + threadIdx.x / 32 * 16;
  const int first_row = blockIdx.z * 8 * kGroups;
  const int in = p.to_latents ? p.width : p.shape.rank, out = p.to_latents ? p.shape.rank : p.width;
  const int x_width = p.to_latents ? p.width : p.shape.key_dim(), y_width = p.to_latents ? p.shape.key_dim() : p.width;
  LetDependentsStart();
  const __nv_bfloat16* w[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int output = min(first_out + half * 8 + line, out - 1);
    w[half] = static_cast<const __nv_bfloat16*>(p.weight) + (static_cast<int64_t>(head) * out + output) * in;
  }
  WaitForInputs();
  if (first_out >= out) return;
  const __nv_bfloat16* x[kGroups];
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    const int row = min(first_row + group * 8 + line, p.num_rows - 1);
    x[group] = static_cast<const __nv_bfloat16*>(p.x) + (static_cast<int64_t>(row) * p.num_heads + head) * x_width;
  }
  float sums[kGroups][4] = {};
#pragma unroll 2
  for (int k = piece; k < (in + kK - 1) / kK * kK; k += kK) {
    const bool exists = k < in;
    const int at = exists ? k : 0, x_at = p.to_latents ? at : p.shape.latent_place(at);
    const uint4 zero = make_uint4(0, 0, 0, 0);
    uint4 a[2], b[kGroups];
#pragma unroll
    for (int half = 0; half < 2; ++half) a[half] = exists ? __ldg(reinterpret_cast<const uint4*>(w[half] + at)) : zero;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      b[group] = exists ? *reinterpret_cast<const uint4*>(x[group] + x_at) : zero;
    }
    const uint32_t first[4] = {a[0].x, a[1].x, a[0].y, a[1].y}, second[4] = {a[0].z, a[1].z, a[0].w, a[1].w};
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      MultiplyAccumulate(sums[group], first, b[group].x, b[group].y);
      MultiplyAccumulate(sums[group], second, b[group].z, b[group].w);
    }
  }
  // A lane has outputs `line` and 8 behind it, of rows 2 * (lane % 4) and the next of each group.
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = first_row + group * 8 + lane % 4 * 2 + i % 2, output = first_out + line + i / 2 * 8;
      if (row >= p.num_rows || output >= out) continue;
      const int64_t at = (static_cast<int64_t>(row) * p.num_heads + head) * y_width +
                         (p.to_latents ? p.shape.latent_place(output) : output);
      if (p.y != nullptr) p.y[at] = sums[group][i];
      if (p.y_again != nullptr) p.y_again[at] = sums[group][i];
      if (p.y_bf16 != nullptr) static_cast<__nv_bfloat16*>(p.y_bf16)[at] = __float2bfloat16(sums[group][i]);
    }
  }
}

}  // namespace

void HeadProducts(Stream stream, const HeadProductsParams& params) {
  WINNOW_CHECK(params.shape.rank % kLatentPiece == 0 && params.shape.rope_dim % kLatentPiece == 0);
  WINNOW_CHECK(params.width % (params.to_latents ? 8 : 2) == 0);
  if (params.num_rows == 0) return;
  const int out = params.to_latents ? params.shape.rank : params.width;
  const auto launch = [&](auto* kernel, int rows) {
    LaunchDependent(
        kernel,
        {.grid = dim3((out + kOutputs - 1) / kOutputs, params.num_heads, (params.num_rows + rows - 1) / rows),
         .threads = kThreads},
        stream, params);
  };
  if (params.num_rows <= 8) return launch(HeadProductsKernel<1>, 8);
  if (params.num_rows <= 16) return launch(HeadProductsKernel<2>, 16);
  if (params.num_rows <= 32) return launch(HeadProductsKernel<4>, 32);
  launch(HeadProductsKernel<8>, 64);
}

}  // namespace winnow::cuda
