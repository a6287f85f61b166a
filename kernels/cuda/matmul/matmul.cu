#include <cuda_runtime.h>

#include <algorithm>

#include "common/base/check.h"
#include "kernels/cuda/device/tensor_map.h"
#include "kernels/cuda/matmul/matmul.h"
#include "kernels/cuda/matmul/matmul_decode.cuh"
#include "kernels/cuda/matmul/matmul_pack.h"
#include "kernels/cuda/matmul/matmul_prefill.h"

namespace winnow::cuda {
namespace {

constexpr int kMaxRows = 64;
// Of the scratch: parts of sums, turns of multiprocessors.
constexpr size_t kPartBytes = size_t{kMatmulBlocks} * kTileOut * kMaxRows * sizeof(float);
constexpr size_t kTurnBytes = kMaxMultiprocessors * sizeof(Turns);

int CeilDiv(int a, int b) {
  return (a + b - 1) / b;
}

size_t PackedBytes(int out_features, int in_features, Dtype dtype) {
  return size_t(out_features) * in_features * (dtype == Dtype::kF8 ? 1 : 2);
}

void Pack(Stream stream, const void* row_major, const DeviceMatrix& matrix) {
  WINNOW_CHECK(matrix.in_features % 32 == 0);
  void* data = const_cast<void*>(matrix.data);
  if (matrix.dtype == Dtype::kBf16) {
    if (data == row_major) return;
    cudaMemcpyAsync(data, row_major, PackedBytes(matrix.out_features, matrix.in_features, matrix.dtype),
                    cudaMemcpyDeviceToDevice, stream);
    return;
  }
  WINNOW_CHECK(matrix.dtype == Dtype::kF8);
  PackF8(stream, row_major, matrix);
}

size_t DecodeScratchBytes(int, int) {
  return kPartBytes + kTurnBytes;
}

// Dynamic shared memory of a block that finds room on a multiprocessor beside one of kRingBytes, but not beside its
// like.
size_t SpreadBytes() {
  const int half = DeviceAttribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor) / 2;
  return std::min(half - 768, DeviceAttribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) - 1024);
}

template <int kRows, bool kF8>
void LaunchDecode(Stream stream, const DecodeMatmulParams& params) {
  using Layout = DecodeLayout<kRows, kF8>;
  const DeviceMatrix& weight = params.weight;
  DecodeMatmulArgs args = {};
  if (ComputeMajor() >= 9) {
    args.weight_map = TensorMapOf(weight.data, Layout::kElementBytes, weight.in_features, weight.out_features,
                                  int64_t{weight.in_features} * Layout::kElementBytes, kTileOut);
    args.x_map = TensorMapOf(params.x, 2, weight.in_features, params.num_rows, params.x_stride * 2, kRows);
  }
  args.x = static_cast<const __nv_bfloat16*>(params.x);
  args.x_stride = params.x_stride;
  args.weight = static_cast<const char*>(weight.data);
  args.scales = kF8 ? weight.scales : nullptr;
  args.y = params.y;
  args.y_stride = params.y_stride;
  args.summand = params.summand;
  args.num_rows = params.num_rows;
  args.out_features = weight.out_features;
  args.in_features = weight.in_features;
  args.accumulate = params.accumulate;
  args.y_is_bf16 = params.y_dtype == Dtype::kBf16;
  args.cuts = CutsOf(CeilDiv(weight.out_features, kTileOut), CeilDiv(weight.in_features, Layout::kChunkK));
  char* scratch = static_cast<char*>(params.scratch);
  args.parts = reinterpret_cast<float4*>(scratch);
  args.turns = reinterpret_cast<Turns*>(scratch + kPartBytes);
  const auto kernel = DecodeMatmulKernel<kRows, kF8>;
  // Two blocks to a multiprocessor: the next kernel's fills its ring while this one runs.
  cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  const size_t shared_bytes =
      params.spread ? std::max<size_t>(Layout::kSharedBytes, SpreadBytes()) : Layout::kSharedBytes;
  LaunchDependent(kernel, {.grid = dim3(args.cuts.num_blocks), .threads = kDecodeThreads, .shared_bytes = shared_bytes},
                  stream, args);
}

template <bool kF8>
void LaunchDecodeOf(Stream stream, const DecodeMatmulParams& params) {
  if (params.num_rows <= 8) return LaunchDecode<8, kF8>(stream, params);
  if (params.num_rows <= 16) return LaunchDecode<16, kF8>(stream, params);
  if (params.num_rows <= 32) return LaunchDecode<32, kF8>(stream, params);
  LaunchDecode<64, kF8>(stream, params);
}

void DecodeMatmul(Stream stream, const DecodeMatmulParams& params) {
  WINNOW_CHECK(params.num_rows >= 1 && params.num_rows <= kMaxRows);
  WINNOW_CHECK(params.weight.in_features % 32 == 0 && params.x_stride % 8 == 0);
  WINNOW_CHECK(!params.accumulate || params.y_dtype == Dtype::kF32);
  WINNOW_CHECK(params.summand.num_ranks == 0 || (params.y_dtype == Dtype::kF32 && !params.accumulate));
  if (params.weight.dtype == Dtype::kF8) {
    LaunchDecodeOf<true>(stream, params);
  } else {
    LaunchDecodeOf<false>(stream, params);
  }
}

}  // namespace

const MatmulKernels kMatmulKernels = {.packed_bytes = PackedBytes,
                                      .pack = Pack,
                                      .decode_scratch_bytes = DecodeScratchBytes,
                                      .decode_matmul = DecodeMatmul,
                                      .open_prefill_plans = OpenPrefillPlans,
                                      .prefill_workspace_bytes = PrefillWorkspaceBytes,
                                      .prefill_matmul = PrefillMatmul};

}  // namespace winnow::cuda
