#include <cudaTypedefs.h>
#include <cuda_runtime.h>

#include "common/base/check.h"
#include "kernels/cuda/tensor_map.h"

namespace winnow::cuda {
namespace {

PFN_cuTensorMapEncodeTiled_v12000 FindEncode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
  WINNOW_CHECK(found == cudaDriverEntryPointSuccess && function != nullptr);
  return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
}

CUtensorMap Encode(const void* data, int element_bytes, int dimensions, const cuuint64_t* sizes,
                   const cuuint64_t* strides, const cuuint32_t* box) {
  static const PFN_cuTensorMapEncodeTiled_v12000 encode = FindEncode();
  const cuuint32_t steps[3] = {1, 1, 1};
  CUtensorMap map;
  // Promotion to 256 bytes costs 5 % of the bandwidth where boxes are 128 bytes wide.
  const CUresult result =
      encode(&map, element_bytes == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, dimensions,
             const_cast<void*>(data), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  WINNOW_CHECK(result == CUDA_SUCCESS);
  return map;
}

}  // namespace

CUtensorMap TensorMapOf(const void* data, int element_bytes, int64_t columns, int64_t rows, int64_t pitch_bytes,
                        int box_rows) {
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(pitch_bytes)};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(128 / element_bytes), static_cast<cuuint32_t>(box_rows)};
  return Encode(data, element_bytes, 2, sizes, strides, box);
}

CUtensorMap TensorMapOfBoxes(const void* data, int element_bytes, int64_t columns, int64_t rows, int64_t pitch_bytes,
                             int box_rows, int num_boxes) {
  const int box_columns = 128 / element_bytes;
  WINNOW_CHECK(columns % box_columns == 0);
  const cuuint64_t sizes[3] = {static_cast<cuuint64_t>(box_columns), static_cast<cuuint64_t>(rows),
                               static_cast<cuuint64_t>(columns / box_columns)};
  const cuuint64_t strides[2] = {static_cast<cuuint64_t>(pitch_bytes), 128};
  const cuuint32_t box[3] = {static_cast<cuuint32_t>(box_columns), static_cast<cuuint32_t>(box_rows),
                             static_cast<cuuint32_t>(num_boxes)};
  return Encode(data, element_bytes, 3, sizes, strides, box);
}

}  // namespace winnow::cuda
