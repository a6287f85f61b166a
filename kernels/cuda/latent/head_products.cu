#include <cuda_bf16.h>

#include "common/base/check.h"
#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/device/row_math.cuh"
#include "kernels/cuda/latent/head_products.h"
#include "kernels/cuda/matmul/matmul_mma.cuh"

// Operands go from memory straight to registers: of 32 of k a lane takes 8 that follow each other, for two steps of
// mma, an order of k that both operands share.
namespace winnow::device {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr int kK = 32;

// One head's product.
struct HeadProduct {
  const __nv_bfloat16* weight;  // [out, in]
  int in, out, x_width, y_width;

  __device__ HeadProduct(const HeadProductsParams& p, int head)
      : in(p.to_latents ? p.width : p.shape.rank),
        out(p.to_latents ? p.shape.rank : p.width),
        x_width(p.to_latents ? p.width : p.shape.key_dim()),
        y_width(p.to_latents ? p.shape.key_dim() : p.width) {
    weight = static_cast<const __nv_bfloat16*>(p.weight) + static_cast<int64_t>(head) * out * in;
  }
  __device__ uint4 Weights(int output, int k, int end) const {
    if (k >= end) return make_uint4(0, 0, 0, 0);
    return __ldg(reinterpret_cast<const uint4*>(weight + static_cast<int64_t>(min(output, out - 1)) * in + k));
  }
  __device__ uint4 Inputs(const HeadProductsParams& p, int head, int row, int k, int end) const {
    if (k >= end) return make_uint4(0, 0, 0, 0);
    const int64_t at = (static_cast<int64_t>(min(row, p.num_rows - 1)) * p.num_heads + head) * x_width;
    return *reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(p.x) + at +
                                           (p.to_latents ? k : p.shape.latent_place(k)));
  }
  __device__ int64_t OutputAt(const HeadProductsParams& p, int head, int row, int output) const {
    return (static_cast<int64_t>(row) * p.num_heads + head) * y_width +
           (p.to_latents ? p.shape.latent_place(output) : output);
  }
};

// Few rows, bound by reading W: on the M side, 16 outputs to a block, whose warps share k. A grid of tiles of outputs,
// heads, and tiles of 8 * kGroups rows.
template <int kGroups>
__global__ void __launch_bounds__(kThreads) FewRowsKernel(const HeadProductsParams p) {
  constexpr int kSteps = 5;  // of k, whose weights are under way before the rows are there
  __shared__ float4 sums_of[kWarps][kGroups][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, line = lane / 4, piece = lane % 4 * 8;
  const int head = blockIdx.y, first_out = blockIdx.x * 16, first_row = blockIdx.z * 8 * kGroups;
  const HeadProduct product(p, head);
  const int of_warp = (product.in + kK * kWarps - 1) / (kK * kWarps) * kK;
  const int begin = warp * of_warp, end = min(begin + of_warp, product.in);
  uint4 a[kSteps][2];
  const auto load_weights = [&](int first) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        a[step][half] = product.Weights(first_out + half * 8 + line, first + step * kK + piece, end);
      }
    }
  };
  load_weights(begin);
  WaitForInputs();
  LetDependentsStart();
  float sums[kGroups][4] = {};
  for (int first = begin; first < end; first += kSteps * kK) {
    if (first > begin) load_weights(first);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (first + step * kK >= end) break;
      uint4 b[kGroups];
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        b[group] = product.Inputs(p, head, first_row + group * 8 + line, first + step * kK + piece, end);
      }
      const uint4 &low = a[step][0], &high = a[step][1];
      const uint32_t one[4] = {low.x, high.x, low.y, high.y}, other[4] = {low.z, high.z, low.w, high.w};
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        MultiplyAccumulate(sums[group], one, b[group].x, b[group].y);
        MultiplyAccumulate(sums[group], other, b[group].z, b[group].w);
      }
    }
  }
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    const float(&v)[4] = sums[group];
    sums_of[warp][group][lane] = make_float4(v[0], v[1], v[2], v[3]);
  }
  __syncthreads();
  // Lane l has outputs l / 4 and 8 behind it, of rows 2 * (l % 4) and the next of each group.
  const auto* const all = reinterpret_cast<const float*>(sums_of);
  for (int i = threadIdx.x; i < kGroups * 128; i += kThreads) {
    const int output = first_out + i % 16, row = first_row + i / 16;
    if (row >= p.num_rows || output >= product.out) continue;
    const int of_lane = i % 8 * 4 + i / 16 % 8 / 2, word = i % 16 / 8 * 2 + i / 16 % 2;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += all[((w * kGroups + i / 128) * 32 + of_lane) * 4 + word];
    const int64_t at = product.OutputAt(p, head, row, output);
    if (p.y != nullptr) p.y[at] = sum;
    if (p.y_again != nullptr) p.y_again[at] = sum;
    if (p.y_bf16 != nullptr) static_cast<__nv_bfloat16*>(p.y_bf16)[at] = __float2bfloat16(sum);
  }
}

constexpr int kTileRows = 64, kTileOutputs = 128;

// Many rows: on the M side, a warp to 32 of them and 64 outputs. A grid of tiles of outputs, heads and tiles of rows.
__global__ void __launch_bounds__(kThreads) ManyRowsKernel(const HeadProductsParams p) {
  constexpr int kRowTiles = 2, kOutTiles = 8;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, line = lane / 4, piece = lane % 4 * 8;
  const int head = blockIdx.y, first_out = blockIdx.x * kTileOutputs + warp % 2 * 64;
  const int first_row = blockIdx.z * kTileRows + warp / 2 * 32;
  const HeadProduct product(p, head);
  WaitForInputs();
  LetDependentsStart();
  if (first_out >= product.out) return;
  float sums[kRowTiles][kOutTiles][4] = {};
  for (int first = 0; first < product.in; first += kK) {
    const int k = first + piece;
    uint4 a[kRowTiles][2], b[kOutTiles];
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        a[tile][half] = product.Inputs(p, head, first_row + tile * 16 + half * 8 + line, k, product.in);
      }
    }
#pragma unroll
    for (int tile = 0; tile < kOutTiles; ++tile) b[tile] = product.Weights(first_out + tile * 8 + line, k, product.in);
#pragma unroll
    for (int row = 0; row < kRowTiles; ++row) {
      const uint4 &low = a[row][0], &high = a[row][1];
      const uint32_t one[4] = {low.x, high.x, low.y, high.y}, other[4] = {low.z, high.z, low.w, high.w};
#pragma unroll
      for (int out = 0; out < kOutTiles; ++out) {
        MultiplyAccumulate(sums[row][out], one, b[out].x, b[out].y);
        MultiplyAccumulate(sums[row][out], other, b[out].z, b[out].w);
      }
    }
  }
  // A lane has rows `line` and 8 behind it, of outputs 2 * (lane % 4) and the next of each tile.
#pragma unroll
  for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + tile * 16 + half * 8 + line;
      if (row >= p.num_rows) continue;
#pragma unroll
      for (int out = 0; out < kOutTiles; ++out) {
        const int output = first_out + out * 8 + lane % 4 * 2;
        if (output >= product.out) continue;  // widths are even
        const float low = sums[tile][out][2 * half], high = sums[tile][out][2 * half + 1];
        const int64_t at = product.OutputAt(p, head, row, output);
        if (p.y != nullptr) *reinterpret_cast<float2*>(p.y + at) = make_float2(low, high);
        if (p.y_again != nullptr) *reinterpret_cast<float2*>(p.y_again + at) = make_float2(low, high);
        if (p.y_bf16 == nullptr) continue;
        *reinterpret_cast<uint32_t*>(static_cast<__nv_bfloat16*>(p.y_bf16) + at) = PackBf16(low, high);
      }
    }
  }
}

}  // namespace

void HeadProducts(Stream stream, const HeadProductsParams& params) {
  WINNOW_CHECK(params.shape.rank % kLatentPiece == 0 && params.shape.rope_dim % kLatentPiece == 0);
  WINNOW_CHECK(params.width % (params.to_latents ? 8 : 2) == 0);
  if (params.num_rows == 0) return;
  const int out = params.to_latents ? params.shape.rank : params.width;
  const auto launch = [&](auto* kernel, int outputs, int rows) {
    LaunchDependent(kernel,
                    {.grid = dim3((out + outputs - 1) / outputs, params.num_heads, (params.num_rows + rows - 1) / rows),
                     .threads = kThreads},
                    stream, params);
  };
  if (params.of_prompt) return launch(ManyRowsKernel, kTileOutputs, kTileRows);
  if (params.num_rows <= 8) return launch(FewRowsKernel<1>, 16, 8);
  if (params.num_rows <= 16) return launch(FewRowsKernel<2>, 16, 16);
  if (params.num_rows <= 32) return launch(FewRowsKernel<4>, 16, 32);
  launch(FewRowsKernel<8>, 16, 64);
}

}  // namespace winnow::device
