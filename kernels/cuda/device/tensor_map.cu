#include <cudaTypedefs.h>
#include <cuda_runtime.h>

#include "common/base/check.h"
#include "kernels/cuda/device/tensor_map.h"

namespace winnow::device {
namespace {

PFN_cuTensorMapEncodeTiled_v12000 FindEncode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
  WINNOW_CHECK(found == cudaDriverEntryPointSuccess && function != nullptr);
  return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
}

}  // namespace

CUtensorMap TensorMapOf(const void* data, int element_bytes, int64_t columns, int64_t rows, int64_t pitch_bytes,
                        int box_rows) {
  static const PFN_cuTensorMapEncodeTiled_v12000 encode = FindEncode();
  CUtensorMap map;
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(pitch_bytes)};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(128 / element_bytes), static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[2] = {1, 1};
  // Promotion to 256 bytes costs 5 % of the bandwidth where boxes are 128 bytes wide.
  const CUresult result =
      encode(&map, element_bytes == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2,
             const_cast<void*>(data), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  WINNOW_CHECK(result == CUDA_SUCCESS);
  return map;
}

}  // namespace winnow::device
