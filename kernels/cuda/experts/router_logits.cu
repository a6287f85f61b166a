#include <cuda_bf16.h>

#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/device/row_math.cuh"
#include "kernels/cuda/experts/route_rows.h"
#include "kernels/cuda/matmul/matmul_mma.cuh"

namespace winnow::device {
namespace {

constexpr int kLogitWarps = 8;

__device__ float RouterBias(const RouteRowsParams& p, int logit) {
  return p.experts.router_bias == nullptr ? 0.0f : p.experts.router_bias[logit];
}

// Some of a router row: kLogitBatch times four of its weights, 128 apart for a lane.
constexpr int kLogitBatch = 8;
__device__ void LoadRouter(const float* weight, int first, int hidden, float4 (&to)[kLogitBatch]) {
#pragma unroll
  for (int i = 0; i < kLogitBatch; ++i) {
    const int k = first + i * 128;
    to[i] = k < hidden ? *reinterpret_cast<const float4*>(weight + k) : make_float4(0, 0, 0, 0);
  }
}

// Logits of one router row for kRows rows of x. A row's sum has the same order for every kRows. The router is constant:
// while the kernel before still runs, what a lane can hold comes to its registers, and the rest to the L2.
template <int kRows>
__global__ void __launch_bounds__(32 * kLogitWarps) RouterLogitsKernel(const RouteRowsParams p) {
  constexpr int kHeld = kRows == 1 ? 2 : 1, kReach = kLogitBatch * 128;
  constexpr int kTogether = kRows == 1 ? kLogitBatch : kRows == 4 ? 4 : 2;  // loads of x under way for each row
  const int lane = threadIdx.x % 32, hidden = p.experts.hidden_size, num_logits = p.experts.num_logits();
  const int logit = blockIdx.x * kLogitWarps + threadIdx.x / 32, first_row = blockIdx.y * kRows;
  const float* const weight = p.experts.router + static_cast<int64_t>(min(logit, num_logits - 1)) * hidden;
  const float bias = RouterBias(p, min(logit, num_logits - 1));
  float4 held[kHeld][kLogitBatch];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) LoadRouter(weight, i * kReach + lane * 4, hidden, held[i]);
  for (int k = kHeld * kReach + lane * 32; k < hidden; k += 32 * 32) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(weight + k));
  }
  WaitForInputs();
  LetDependentsStart();
  if (logit >= num_logits) return;
  const __nv_bfloat16* x[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    x[r] = static_cast<const __nv_bfloat16*>(p.x) + static_cast<int64_t>(min(first_row + r, p.num_rows - 1)) * hidden;
  }
  float sums[kRows] = {};
  const auto add = [&](const float4(&w)[kLogitBatch], int first) {
#pragma unroll
    for (int together = 0; together < kLogitBatch; together += kTogether) {
      uint2 pairs[kTogether][kRows];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int k = first + (together + i) * 128;
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          pairs[i][r] = k < hidden ? *reinterpret_cast<const uint2*>(x[r] + k) : make_uint2(0, 0);
        }
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const float4& of = w[together + i];
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          sums[r] = fmaf(of.x, LowBf16(pairs[i][r].x), sums[r]);
          sums[r] = fmaf(of.y, HighBf16(pairs[i][r].x), sums[r]);
          sums[r] = fmaf(of.z, LowBf16(pairs[i][r].y), sums[r]);
          sums[r] = fmaf(of.w, HighBf16(pairs[i][r].y), sums[r]);
        }
      }
    }
  };
#pragma unroll
  for (int i = 0; i < kHeld; ++i) add(held[i], i * kReach + lane * 4);
  for (int first = kHeld * kReach + lane * 4; first - lane * 4 < hidden; first += kReach) {
    LoadRouter(weight, first, hidden, held[0]);
    add(held[0], first);
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float sum = WarpSum(sums[r]);
    if (lane == 0 && first_row + r < p.num_rows) {
      p.routed.logits[static_cast<int64_t>(first_row + r) * num_logits + logit] = sum + bias;
    }
  }
}

// The same for many rows, on tensor cores: a warp takes 16 rows and 32 logits. Each weight is split into two bf16,
// which keep 16 of its bits: all that weights have which were trained in bf16. As in expert_strips.cuh operands go
// straight to registers, in an order in k of their own.
constexpr int kLogitTileRows = 64, kLogitTile = 32;

__device__ void SplitToBf16(float4 w, uint32_t (&high)[2], uint32_t (&low)[2]) {
  high[0] = PackBf16(w.x, w.y), high[1] = PackBf16(w.z, w.w);
  low[0] = PackBf16(w.x - LowBf16(high[0]), w.y - HighBf16(high[0]));
  low[1] = PackBf16(w.z - LowBf16(high[1]), w.w - HighBf16(high[1]));
}

__global__ void __launch_bounds__(2 * kLogitTileRows) RouterTilesKernel(const RouteRowsParams p) {
  WaitForInputs();
  LetDependentsStart();
  const int lane = threadIdx.x % 32, line = lane / 4, piece = lane % 4 * 8;
  const int hidden = p.experts.hidden_size, num_logits = p.experts.num_logits();
  const int first_row = blockIdx.y * kLogitTileRows + threadIdx.x / 32 * 16, first_logit = blockIdx.x * kLogitTile;
  const __nv_bfloat16* x[2];
  const float* w[4];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = min(first_row + half * 8 + line, p.num_rows - 1);
    x[half] = static_cast<const __nv_bfloat16*>(p.x) + static_cast<int64_t>(row) * hidden;
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    w[j] = p.experts.router + static_cast<int64_t>(min(first_logit + j * 8 + line, num_logits - 1)) * hidden;
  }
  float sums[4][4] = {};
  for (int k = piece; k < (hidden + 31) / 32 * 32; k += 32) {
    const bool exists = k < hidden;
    uint4 a[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      a[half] = exists ? *reinterpret_cast<const uint4*>(x[half] + k) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float4 first = make_float4(0, 0, 0, 0), second = first;
      if (exists) {
        first = *reinterpret_cast<const float4*>(w[j] + k);
        second = *reinterpret_cast<const float4*>(w[j] + k + 4);
      }
      uint32_t high[2], low[2];
      SplitToBf16(first, high, low);
      MultiplyAccumulate(sums[j], {a[0].x, a[1].x, a[0].y, a[1].y}, high[0], high[1]);
      MultiplyAccumulate(sums[j], {a[0].x, a[1].x, a[0].y, a[1].y}, low[0], low[1]);
      SplitToBf16(second, high, low);
      MultiplyAccumulate(sums[j], {a[0].z, a[1].z, a[0].w, a[1].w}, high[0], high[1]);
      MultiplyAccumulate(sums[j], {a[0].z, a[1].z, a[0].w, a[1].w}, low[0], low[1]);
    }
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = first_row + i / 2 * 8 + line, logit = first_logit + j * 8 + lane % 4 * 2 + i % 2;
      if (row < p.num_rows && logit < num_logits) {
        p.routed.logits[static_cast<int64_t>(row) * num_logits + logit] = sums[j][i] + RouterBias(p, logit);
      }
    }
  }
}

}  // namespace

void RouterLogits(Stream stream, ExpertRows rows, const RouteRowsParams& params) {
  const int num_logits = params.experts.num_logits();
  if (rows == ExpertRows::kMany) {
    const LaunchShape shape = {
        .grid = dim3(DivideUp(num_logits, kLogitTile), DivideUp(params.num_rows, kLogitTileRows)),
        .threads = 2 * kLogitTileRows};
    LaunchDependent(RouterTilesKernel, shape, stream, params);
    return;
  }
  // Few rows to a warp, so that a step does not wait for one load after the other; fewer blocks for more rows.
  const auto launch = [&](auto* kernel, int rows_of_warp) {
    const LaunchShape shape = {.grid = dim3(DivideUp(num_logits, kLogitWarps), DivideUp(params.num_rows, rows_of_warp)),
                               .threads = 32 * kLogitWarps};
    LaunchDependent(kernel, shape, stream, params);
  };
  if (params.num_rows <= 8) return launch(RouterLogitsKernel<1>, 1);
  if (params.num_rows <= 32) return launch(RouterLogitsKernel<4>, 4);
  launch(RouterLogitsKernel<8>, 8);
}

}  // namespace winnow::device
