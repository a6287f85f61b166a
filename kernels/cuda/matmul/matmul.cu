#include <cuda_runtime.h>

#include "common/base/check.h"
#include "kernels/cuda/matmul/matmul_launch.cuh"
#include "kernels/cuda/matmul/matmul_pack.h"
#include "kernels/cuda/matmul/matmul_prefill.h"
#include "kernels/device/params/matmul.h"

namespace winnow::device {
namespace {

size_t PackedBytes(int out_features, int in_features, Dtype dtype) {
  if (dtype == Dtype::kBf16) return DtypeBytes(dtype, size_t(out_features) * in_features);
  return dtype == Dtype::kF8 ? F8Form::PackedBytes(out_features, in_features)
                             : I4GroupForm<128>::PackedBytes(out_features, in_features);
}

size_t ScaleBytes(int out_features, int in_features, Dtype dtype, int group_size) {
  if (dtype == Dtype::kBf16) return 0;
  return VisitPackedForm(dtype, group_size,
                         [&](auto form) { return decltype(form)::ScaleBytes(out_features, in_features); });
}

bool HasWholeSteps(const DeviceMatrix& matrix) {
  return matrix.in_features % (matrix.dtype == Dtype::kBf16 ? 8 : 32) == 0;
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
  PackRounded(stream, row_major, matrix);
}

void PackStored(Stream stream, const MatrixCodes& codes, const DeviceMatrix& matrix) {
  CheckForm(matrix);
  WINNOW_CHECK(matrix.dtype != Dtype::kBf16);
  PackCodes(stream, codes, matrix);
}

size_t DecodeScratchBytes(int, int) {
  return kPartBytes + kTurnBytes;
}

void DecodeMatmul(Stream stream, const DecodeMatmulParams& params) {
  const DeviceMatrix& weight = params.weight;
  WINNOW_CHECK(params.num_rows >= 1 && params.num_rows <= kMaxDecodeMatmulRows);
  WINNOW_CHECK(HasWholeSteps(weight) && params.x_stride % 8 == 0);
  WINNOW_CHECK(!params.accumulate || params.y_dtype == Dtype::kF32);
  WINNOW_CHECK(params.term.num_ranks == 0 || (params.y_dtype == Dtype::kF32 && !params.accumulate));
  if (weight.dtype == Dtype::kBf16) {
    LaunchDecodeOf<Bf16Form>(stream, params);
  } else {
    VisitPackedForm(weight.dtype, weight.group_size,
                    [&](auto form) { LaunchDecodeOf<decltype(form)>(stream, params); });
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

}  // namespace winnow::device
