#pragma once
#include <cuda_runtime.h>

#include "kernels/cuda/device/tensor_map.h"
#include "kernels/cuda/matmul/matmul.h"
#include "kernels/cuda/matmul/matmul_scratch.h"
#include "kernels/cuda/matmul/packed_decode.cuh"
#include "kernels/cuda/matmul/packed_launch.h"

namespace winnow::cuda {

template <int kRows, typename Form>
void LaunchPacked(Stream stream, const DecodeMatmulParams& params) {
  using Layout = PackedLayout<kRows, Form>;
  const DeviceMatrix& weight = params.weight;
  PackedMatmulArgs args = {.shape = PackedShape(weight.out_features, weight.in_features)};
  if (ComputeMajor() >= 9) {
    args.x_map = TensorMapOf(params.x, 2, weight.in_features, params.num_rows, params.x_stride * 2, kRows);
  }
  args.x = static_cast<const __nv_bfloat16*>(params.x);
  args.x_stride = params.x_stride;
  args.weight = static_cast<const char*>(weight.data);
  args.row_scales = Form::kHasGroups ? nullptr : weight.scales;
  args.group_scales = Form::kHasGroups ? reinterpret_cast<const char*>(weight.scales) : nullptr;
  args.y = params.y;
  args.y_stride = params.y_stride;
  args.summand = params.summand;
  args.num_rows = params.num_rows;
  args.out_features = weight.out_features;
  args.in_features = weight.in_features;
  args.accumulate = params.accumulate;
  args.y_is_bf16 = params.y_dtype == Dtype::kBf16;
  char* const scratch = static_cast<char*>(params.scratch);
  args.parts = reinterpret_cast<float4*>(scratch);
  args.turns = reinterpret_cast<Turns*>(scratch + kPartBytes);
  LaunchProduct(PackedMatmulKernel<kRows, Form>, args.shape.teams() * kTeamBlocks, Layout::kThreads,
                Layout::kSharedBytes, params.spread, stream, args);
}

template <typename Form>
void LaunchPackedOf(Stream stream, const DecodeMatmulParams& params) {
  if (params.num_rows <= 8) return LaunchPacked<8, Form>(stream, params);
  if (params.num_rows <= 16) return LaunchPacked<16, Form>(stream, params);
  if (params.num_rows <= 32) return LaunchPacked<32, Form>(stream, params);
  LaunchPacked<64, Form>(stream, params);
}

}  // namespace winnow::cuda
