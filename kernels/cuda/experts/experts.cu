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
  // An expert has at most as many pairs as there are rows.
  auto* const kernel = num_rows <= 8    ? ExpertStripKernel<1, kGated, kCodes>
                       : num_rows <= 16 ? ExpertStripKernel<2, kGated, kCodes>
                                        : ExpertStripKernel<4, kGated, kCodes>;
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

// A thread to four columns of a row.
__global__ void __launch_bounds__(kAddThreads) AddExpertsKernel(const AddExpertsParams p) {
  LetDependentsStart();
  WaitForInputs();
  const int64_t row = blockIdx.x;
  const int hidden = p.experts.hidden_size, per_row = p.experts.pairs_per_row();
  const int column = (blockIdx.y * kAddThreads + threadIdx.x) * 4;
  if (column >= hidden) return;
  float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 8
  for (int i = 0; i < per_row; ++i) {
    const uint32_t place = p.routed.places[row * per_row + i];
    if (place == kNoPair) return;
    const int64_t pair = place;
    const float4 v = *reinterpret_cast<const float4*>(p.pairs + pair * hidden + column);
    sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
  }
  float4* const to = reinterpret_cast<float4*>(p.residual + row * hidden + column);
  const float4 old = *to;
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
