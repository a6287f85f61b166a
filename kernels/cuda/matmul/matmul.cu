#include <cuda_runtime.h>

#include "common/base/check.h"
#include "kernels/cuda/device/tensor_map.h"
#include "kernels/cuda/matmul/matmul.h"
#include "kernels/cuda/matmul/matmul_decode.cuh"
#include "kernels/cuda/matmul/matmul_pack.h"
#include "kernels/cuda/matmul/matmul_prefill.h"
#include "kernels/cuda/matmul/matmul_scratch.h"
#include "kernels/cuda/matmul/packed_launch.h"

namespace winnow::cuda {
namespace {

size_t PackedBytes(int out_features, int in_features, Dtype dtype) {
  const int strips = (out_features + kStripOut - 1) / kStripOut;
  return DtypeBytes(dtype, size_t(dtype == Dtype::kBf16 ? out_features : strips * kStripOut) * in_features);
}

size_t ScaleBytes(int out_features, int in_features, Dtype dtype, int group_size) {
  if (dtype == Dtype::kBf16) return 0;
  if (group_size == 0) return out_features * sizeof(float);
  return VisitGroupForm(dtype, group_size,
                        [&](auto form) { return decltype(form)::ScaleBytes(out_features, in_features); });
}

bool HasWholeSteps(const DeviceMatrix& matrix) {
  return matrix.in_features % (matrix.dtype == Dtype::kBf16 ? 8 : kStepK) == 0;
}

void CheckForm(const DeviceMatrix& matrix) {
  WINNOW_CHECK(HasWholeSteps(matrix));
  const int group = matrix.group_size;
  const bool has_groups = group == 128 || group == 64 || group == 32;
  WINNOW_CHECK(matrix.dtype == Dtype::kBf16 ? group == 0
               : matrix.dtype == Dtype::kF8 ? group == 0 || has_groups
                                            : matrix.dtype == Dtype::kI4 && has_groups);
}

void Pack(Stream stream, const void* row_major, const DeviceMatrix& matrix) {
  CheckForm(matrix);
  void* data = const_cast<void*>(matrix.data);
  if (matrix.dtype == Dtype::kBf16) {
    if (data == row_major) return;
    cudaMemcpyAsync(data, row_major, PackedBytes(matrix.out_features, matrix.in_features, matrix.dtype),
                    cudaMemcpyDeviceToDevice, stream);
    return;
  }
  if (matrix.group_size == 0) return PackF8(stream, row_major, matrix);
  PackGroups(stream, row_major, matrix);
}

void PackStored(Stream stream, const MatrixCodes& codes, const DeviceMatrix& matrix) {
  CheckForm(matrix);
  WINNOW_CHECK(matrix.dtype != Dtype::kBf16);
  PackCodes(stream, codes, matrix);
}

size_t DecodeScratchBytes(int, int) {
  return kPartBytes + kTurnBytes;
}

int CeilDiv(int a, int b) {
  return (a + b - 1) / b;
}

template <int kRows>
void LaunchBf16(Stream stream, const DecodeMatmulParams& params) {
  const DeviceMatrix& weight = params.weight;
  DecodeMatmulArgs args = {};
  if (ComputeMajor() >= 9) {
    args.weight_map =
        TensorMapOf(weight.data, 2, weight.in_features, weight.out_features, int64_t{weight.in_features} * 2, kTileOut);
    args.x_map = TensorMapOf(params.x, 2, weight.in_features, params.num_rows, params.x_stride * 2, kRows);
  }
  args.x = static_cast<const __nv_bfloat16*>(params.x);
  args.x_stride = params.x_stride;
  args.weight = static_cast<const char*>(weight.data);
  args.y = params.y;
  args.y_stride = params.y_stride;
  args.summand = params.summand;
  args.num_rows = params.num_rows;
  args.out_features = weight.out_features;
  args.in_features = weight.in_features;
  args.accumulate = params.accumulate;
  args.y_is_bf16 = params.y_dtype == Dtype::kBf16;
  args.cuts = CutsOf(CeilDiv(weight.out_features, kTileOut), CeilDiv(weight.in_features, kChunkK));
  char* const scratch = static_cast<char*>(params.scratch);
  args.parts = reinterpret_cast<float4*>(scratch);
  args.turns = reinterpret_cast<Turns*>(scratch + kPartBytes);
  LaunchProduct(DecodeMatmulKernel<kRows>, args.cuts.num_blocks, kDecodeThreads, DecodeLayout<kRows>::kSharedBytes,
                params.spread, stream, args);
}

void DecodeMatmul(Stream stream, const DecodeMatmulParams& params) {
  const DeviceMatrix& weight = params.weight;
  WINNOW_CHECK(params.num_rows >= 1 && params.num_rows <= kMaxDecodeMatmulRows);
  WINNOW_CHECK(HasWholeSteps(weight) && params.x_stride % 8 == 0);
  WINNOW_CHECK(!params.accumulate || params.y_dtype == Dtype::kF32);
  WINNOW_CHECK(params.summand.num_ranks == 0 || (params.y_dtype == Dtype::kF32 && !params.accumulate));
  if (weight.dtype != Dtype::kBf16) {
    VisitPackedForm(weight.dtype, weight.group_size,
                    [&](auto form) { LaunchPackedOf<decltype(form)>(stream, params); });
  } else if (params.num_rows <= 8) {
    LaunchBf16<8>(stream, params);
  } else if (params.num_rows <= 16) {
    LaunchBf16<16>(stream, params);
  } else if (params.num_rows <= 32) {
    LaunchBf16<32>(stream, params);
  } else {
    LaunchBf16<64>(stream, params);
  }
}

}  // namespace

const MatmulKernels kMatmulKernels = {.packed_bytes = PackedBytes,
                                      .scale_bytes = ScaleBytes,
                                      .pack = Pack,
                                      .pack_codes = PackStored,
                                      .decode_scratch_bytes = DecodeScratchBytes,
                                      .decode_matmul = DecodeMatmul,
                                      .open_prefill_plans = OpenPrefillPlans,
                                      .prefill_workspace_bytes = PrefillWorkspaceBytes,
                                      .prefill_matmul = PrefillMatmul};

}  // namespace winnow::cuda
