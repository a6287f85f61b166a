#pragma once
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/device/tensor_map.h"
#include "kernels/cuda/matmul/matmul_decode.cuh"
#include "kernels/device/params/matmul.h"

namespace winnow::device {

inline constexpr int kMaxDecodeMatmulRows = 64;
// Of the scratch: parts of sums, turns of multiprocessors.
inline constexpr size_t kPartBytes =
    2 * size_t{kMatmulBlocks} * I4GroupForm<128>::kTileOut * kMaxDecodeMatmulRows * sizeof(float);
inline constexpr size_t kTurnBytes = kMaxMultiprocessors * sizeof(Turns);

inline int CeilDiv(int a, int b) {
  return (a + b - 1) / b;
}

// Dynamic shared memory of a block that finds room on a multiprocessor beside one of kRingBytes, but not beside its
// like.
inline size_t SpreadBytes() {
  const int half = DeviceAttribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor) / 2;
  return std::min(half - 768, DeviceAttribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) - 1024);
}

template <int kRows, typename Form>
void LaunchDecode(Stream stream, const DecodeMatmulParams& params) {
  using Layout = DecodeLayout<kRows, Form>;
  const DeviceMatrix& weight = params.weight;
  DecodeMatmulArgs args = {};
  if (ComputeMajor() >= 9) {
    if (!Form::kIsPacked) {
      args.weight_map = TensorMapOf(weight.data, 2, weight.in_features, weight.out_features,
                                    int64_t{weight.in_features} * 2, Form::kTileOut);
    }
    args.x_map = TensorMapOf(params.x, 2, weight.in_features, params.num_rows, params.x_stride * 2, kRows);
  }
  args.x = static_cast<const __nv_bfloat16*>(params.x);
  args.x_stride = params.x_stride;
  args.weight = static_cast<const char*>(weight.data);
  args.scales = Form::kBits == 8 && !Form::kHasGroups ? weight.scales : nullptr;
  args.group_scales = Form::kHasGroups ? weight.scales : nullptr;
  args.y = params.y;
  args.y_stride = params.y_stride;
  args.term = params.term;
  args.num_rows = params.num_rows;
  args.out_features = weight.out_features;
  args.in_features = weight.in_features;
  args.accumulate = params.accumulate;
  args.y_is_bf16 = params.y_dtype == Dtype::kBf16;
  args.cuts = CutsOf(CeilDiv(weight.out_features, Form::kTileOut), CeilDiv(weight.in_features, Form::kChunkK));
  char* scratch = static_cast<char*>(params.scratch);
  args.parts = reinterpret_cast<float4*>(scratch);
  args.turns = reinterpret_cast<Turns*>(scratch + kPartBytes);
  const auto kernel = DecodeMatmulKernel<kRows, Form>;
  // Two blocks to a multiprocessor: the next kernel's fills its ring while this one runs.
  cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  const size_t shared_bytes =
      params.spread ? std::max<size_t>(Layout::kSharedBytes, SpreadBytes()) : Layout::kSharedBytes;
  LaunchDependent(kernel,
                  {.grid = dim3(args.cuts.num_blocks), .threads = Form::kDecodeThreads, .shared_bytes = shared_bytes},
                  stream, args);
}

template <typename Form>
void LaunchDecodeOf(Stream stream, const DecodeMatmulParams& params) {
  if (params.num_rows <= 8) return LaunchDecode<8, Form>(stream, params);
  if (params.num_rows <= 16) return LaunchDecode<16, Form>(stream, params);
  if (params.num_rows <= 32) return LaunchDecode<32, Form>(stream, params);
  LaunchDecode<64, Form>(stream, params);
}

// In files of their own, to be compiled beside each other.
extern template void LaunchDecodeOf<F8GroupForm<128>>(Stream, const DecodeMatmulParams&);
extern template void LaunchDecodeOf<F8GroupForm<64>>(Stream, const DecodeMatmulParams&);
extern template void LaunchDecodeOf<F8GroupForm<32>>(Stream, const DecodeMatmulParams&);
extern template void LaunchDecodeOf<I4GroupForm<128>>(Stream, const DecodeMatmulParams&);
extern template void LaunchDecodeOf<I4GroupForm<64>>(Stream, const DecodeMatmulParams&);
extern template void LaunchDecodeOf<I4GroupForm<32>>(Stream, const DecodeMatmulParams&);

}  // namespace winnow::device
