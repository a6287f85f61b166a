#include "common/base/check.h"
#include "common/base/kv_layout.h"
#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/device/row_math.cuh"
#include "kernels/cuda/prefill/widen_rows.h"

namespace winnow::device {
namespace {

constexpr int kThreads = 256;
constexpr int kCodes = 8;  // of a thread

__device__ float CodeAt(uint2 codes, int i) {
  const uint32_t word = i < 4 ? codes.x : codes.y;
  return static_cast<float>(static_cast<int8_t>(word >> i % 4 * 8));
}

// blockIdx.y is the kv head; threads share out the pieces of its rows, and behind those the positions of the pad.
__global__ void __launch_bounds__(kThreads) WidenRowsKernel(const WidenRowsParams p) {
  WaitForInputs();
  LetDependentsStart();
  const int pieces = 2 * p.head_dim / kCodes;
  const int64_t item = blockIdx.x * int64_t{kThreads} + threadIdx.x, num_pieces = int64_t{p.num_rows} * pieces;
  const int64_t first = blockIdx.y * p.kv_head_stride;
  if (item >= num_pieces) {
    const int64_t position = p.num_rows + (item - num_pieces);
    if (position >= p.num_rows + kPrefillScalePad) return;
    p.key_scales[first + position] = 0;
    p.value_scales[first + position] = 0;
    return;
  }
  const int64_t row = item / pieces, piece = item % pieces;
  const size_t row_bytes = 2 * static_cast<size_t>(p.head_dim) + 2 * sizeof(float);
  const auto* const from =
      reinterpret_cast<const uint2*>(static_cast<const char*>(p.rows) + (blockIdx.y * p.head_stride + row) * row_bytes);
  const uint2 codes = from[piece];
  uint4 wide;
  wide.x = PackBf16(CodeAt(codes, 0), CodeAt(codes, 1));
  wide.y = PackBf16(CodeAt(codes, 2), CodeAt(codes, 3));
  wide.z = PackBf16(CodeAt(codes, 4), CodeAt(codes, 5));
  wide.w = PackBf16(CodeAt(codes, 6), CodeAt(codes, 7));
  static_cast<uint4*>(p.kv)[(first + row) * pieces + piece] = wide;
  if (piece != 0) return;
  const auto scales = reinterpret_cast<const float2&>(from[pieces]);
  p.key_scales[first + row] = scales.x;
  p.value_scales[first + row] = scales.y;
}

}  // namespace

void WidenRows(Stream stream, const WidenRowsParams& p) {
  WINNOW_CHECK(p.head_dim % kCodes == 0 && p.kv_head_stride % 4 == 0);
  WINNOW_CHECK(p.kv_head_stride >= int64_t{p.num_rows} + kPrefillScalePad);
  if (p.num_rows == 0) return;
  const int64_t items = int64_t{p.num_rows} * (2 * p.head_dim / kCodes) + kPrefillScalePad;
  LaunchDependent(
      WidenRowsKernel,
      {.grid = dim3(static_cast<unsigned>((items + kThreads - 1) / kThreads), p.num_kv_heads), .threads = kThreads},
      stream, p);
}

}  // namespace winnow::device
