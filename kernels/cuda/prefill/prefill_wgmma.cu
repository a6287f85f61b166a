#include <cuda.h>

#include <algorithm>

#include "common/base/check.h"
#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/prefill/prefill_wgmma.cuh"
#include "kernels/cuda/prefill/prefill_wgmma.h"

namespace winnow::device {
namespace {

using namespace prefill;

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);
// From the driver, so that the plugin does not link against it.
EncodeTiled FindEncodeTiled() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result;
  WINNOW_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault,
                                                &result) == cudaSuccess);
  WINNOW_CHECK(result == cudaDriverEntryPointSuccess);
  return reinterpret_cast<EncodeTiled>(function);
}

// [depth][height][width] bf16 with the given strides in elements, copied in blocks of block_depth x block_height x
// columns.
struct TensorShape {
  uint64_t width, height, depth;
  uint64_t height_stride, depth_stride;
  uint32_t columns, block_height, block_depth;
};
CUtensorMap EncodeTensor(EncodeTiled encode, const void* data, const TensorShape& t) {
  CUtensorMap map;
  const cuuint64_t sizes[3] = {t.width, t.height, t.depth};
  const cuuint64_t strides[2] = {t.height_stride * 2, t.depth_stride * 2};
  const cuuint32_t block[3] = {t.columns, t.block_height, t.block_depth};
  const cuuint32_t steps[3] = {1, 1, 1};
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<void*>(data), sizes, strides, block, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, t.columns == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  WINNOW_CHECK(result == CUDA_SUCCESS);
  return map;
}

template <int kHeadDim, bool kScaled>
void LaunchOf(Stream stream, const PrefillAttentionParams& p) {
  using L = Layout<kHeadDim, kScaled>;
  static const EncodeTiled encode = FindEncodeTiled();
  const uint64_t num_keys = uint64_t{p.first_position} + p.num_queries;
  const uint64_t heads = p.num_query_heads;
  const TensorShape queries = {.width = kHeadDim,
                               .height = heads,
                               .depth = static_cast<uint64_t>(p.num_queries),
                               .height_stride = kHeadDim,
                               .depth_stride = heads * kHeadDim,
                               .columns = L::Block::kColumns,
                               .block_height = 1,
                               .block_depth = kQueries};
  TensorShape results = queries;
  results.block_depth = kConsumerQueries;
  const TensorShape rows = {.width = 2 * kHeadDim,
                            .height = num_keys,
                            .depth = static_cast<uint64_t>(p.num_kv_heads),
                            .height_stride = 2 * kHeadDim,
                            .depth_stride = 2 * kHeadDim * static_cast<uint64_t>(p.kv_head_stride),
                            .columns = L::Block::kColumns,
                            .block_height = L::kTile,
                            .block_depth = 1};
  const TensorMaps maps = {.q = EncodeTensor(encode, p.q, queries),
                           .kv = EncodeTensor(encode, p.kv, rows),
                           .out = EncodeTensor(encode, p.out, results)};
  constexpr uint64_t kSectionBytes = 24 << 20;  // half of an H200's L2
  const int section_kv_heads = static_cast<int>(
      std::clamp<uint64_t>(kSectionBytes / (num_keys * 4 * kHeadDim), 1, static_cast<uint64_t>(p.num_kv_heads)));
  const WorkOrder order = {.num_heads = p.num_query_heads,
                           .section_heads = section_kv_heads * (p.num_query_heads / p.num_kv_heads),
                           .num_query_blocks = (p.num_queries + kQueries - 1) / kQueries};
  LaunchDependent(
      PrefillWgmmaKernel<kHeadDim, kScaled>,
      {.grid = dim3(order.num_query_blocks * p.num_query_heads), .threads = kThreads, .shared_bytes = L::kBytes},
      stream, p, order, maps);
}

template <int kHeadDim>
void Launch(Stream stream, const PrefillAttentionParams& p) {
  p.key_scales != nullptr ? LaunchOf<kHeadDim, true>(stream, p) : LaunchOf<kHeadDim, false>(stream, p);
}

}  // namespace

void PrefillAttentionWgmma(Stream stream, const PrefillAttentionParams& params) {
  switch (params.head_dim) {
    case 64:
      return Launch<64>(stream, params);
    case 96:
      return Launch<96>(stream, params);
    case 128:
      return Launch<128>(stream, params);
    case 256:
      return Launch<256>(stream, params);
  }
  WINNOW_CHECK(false);
}

}  // namespace winnow::device
