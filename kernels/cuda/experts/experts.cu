#include <algorithm>

#include "common/base/check.h"
#include "kernels/cuda/experts/expert_strips.cuh"
#include "kernels/cuda/experts/expert_tiles.cuh"
#include "kernels/cuda/experts/route_rows.h"
#include "kernels/device/params/experts.h"

namespace winnow::device {
namespace {

template <bool kGated, bool kCodes>
void LaunchOf(Stream stream, ExpertRows rows, const ExpertMatrices& of, const RoutedRows& routed, int num_rows,
              const StripProduct& product) {
  const int64_t pairs = int64_t{num_rows} * of.pairs_per_row();
  if (rows == ExpertRows::kMany) {
    const int64_t tiles = pairs / kExpertTileRows + std::min<int64_t>(pairs, of.num_all());
    const LaunchShape shape = {.grid = dim3(DivideUp(product.out_features, kGated ? kTileOutputs / 2 : kTileOutputs),
                                            static_cast<unsigned>(tiles)),
                               .threads = kTileThreads,
                               .shared_bytes = kTileSharedBytes};
    LaunchDependent(ExpertTileKernel<kGated, kCodes>, shape, stream, product, routed);
    return;
  }
  const LaunchShape shape = {.grid = dim3(DivideUp(product.out_features, kGated ? kStripOutputs / 2 : kStripOutputs),
                                          static_cast<unsigned>(std::min<int64_t>(pairs, of.num_all()))),
                             .threads = kStripThreads};
  // Three blocks on a multiprocessor, each of which holds more, or four: so that blocks which all find a place at once
  // are shared out evenly. Where some wait for places, codes want more warps.
  const unsigned num_blocks = shape.grid.x * shape.grid.y;
  const unsigned multiprocessors = DeviceAttribute(cudaDevAttrMultiProcessorCount);
  const bool wants_four = num_blocks > 3 * multiprocessors && (kCodes || num_blocks <= 4 * multiprocessors);
  // An expert has at most as many pairs as there are rows.
  auto* const kernel = num_rows > 16  ? ExpertStripKernel<4, kGated, kCodes, 3>
                       : num_rows > 8 ? ExpertStripKernel<2, kGated, kCodes, 3>
                       : wants_four   ? ExpertStripKernel<1, kGated, kCodes, 4>
                                      : ExpertStripKernel<1, kGated, kCodes, 3>;
  LaunchDependent(kernel, shape, stream, product, routed);
}

template <bool kGated>
void Launch(Stream stream, ExpertRows rows, const ExpertMatrices& of, const RoutedRows& routed, int num_rows,
            const StripProduct& product) {
  const int divisor = of.mxfp4 ? kExpertBlock : 8;
  WINNOW_CHECK(of.hidden_size % divisor == 0 && of.intermediate_size % divisor == 0);
  if (num_rows == 0) return;
  if (of.mxfp4) return LaunchOf<kGated, true>(stream, rows, of, routed, num_rows, product);
  LaunchOf<kGated, false>(stream, rows, of, routed, num_rows, product);
}

void GateUp(Stream stream, ExpertRows rows, const ExpertGateUpParams& params) {
  const ExpertMatrices& of = params.experts;
  Launch<true>(stream, rows, of, params.routed, params.num_rows,
               {.weight = of.gate_up,
                .scales = of.gate_up_scales,
                .matrix_rows = 2 * of.intermediate_size,
                .in_features = of.hidden_size,
                .out_features = of.intermediate_size,
                .bias = of.gate_up_bias,
                .activation = of.activation,
                .x = static_cast<const __nv_bfloat16*>(params.x),
                .x_by_row = true,
                .out = params.out});
}

void Down(Stream stream, ExpertRows rows, const ExpertDownParams& params) {
  const ExpertMatrices& of = params.experts;
  Launch<false>(stream, rows, of, params.routed, params.num_rows,
                {.weight = of.down,
                 .scales = of.down_scales,
                 .matrix_rows = of.hidden_size,
                 .in_features = of.intermediate_size,
                 .out_features = of.hidden_size,
                 .bias = of.down_bias,
                 .activation = of.activation,
                 .x = static_cast<const __nv_bfloat16*>(params.x),
                 .x_by_row = false,
                 .out = params.out});
}

constexpr int kAddThreads = 128;

// A thread to four columns of a row. Places and residual are there before the product of down began, whose blocks let
// this one's start behind their own waiting.
__global__ void __launch_bounds__(kAddThreads) AddExpertsKernel(const AddExpertsParams p) {
  LetDependentsStart();
  const int64_t row = blockIdx.x;
  const int hidden = p.experts.hidden_size, per_row = p.experts.pairs_per_row();
  const int column = (blockIdx.y * kAddThreads + threadIdx.x) * 4;
  const bool exists = column < hidden;
  constexpr int kHeld = 8;
  uint32_t held[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) held[i] = i < per_row ? __ldcg(p.routed.places + row * per_row + i) : 0;
  float4* const to = reinterpret_cast<float4*>(p.residual + row * hidden + column);
  const float4 old = exists ? __ldcg(to) : make_float4(0, 0, 0, 0);
  WaitForInputs();
  if (!exists || held[0] == kNoPair) return;
  float4 sum = make_float4(0, 0, 0, 0);
  const auto add = [&](uint32_t place) {
    const float4 v = *reinterpret_cast<const float4*>(p.pairs + int64_t{place} * hidden + column);
    sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
  };
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    if (i < per_row) add(held[i]);
  }
#pragma unroll 4
  for (int i = kHeld; i < per_row; ++i) add(p.routed.places[row * per_row + i]);
  *to = make_float4(old.x + sum.x, old.y + sum.y, old.z + sum.z, old.w + sum.w);
}

void Add(Stream stream, const AddExpertsParams& params) {
  if (params.num_rows == 0) return;
  const LaunchShape shape = {.grid = dim3(params.num_rows, DivideUp(params.experts.hidden_size, 4 * kAddThreads)),
                             .threads = kAddThreads};
  LaunchDependent(AddExpertsKernel, shape, stream, params);
}

}  // namespace

const ExpertKernels kExpertKernels = {.route = RouteRows, .gate_up = GateUp, .down = Down, .add = Add};

}  // namespace winnow::device
