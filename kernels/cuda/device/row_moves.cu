#include <algorithm>

#include "kernels/cuda/device/row_moves.cuh"
#include "kernels/cuda/device/row_moves.h"

namespace winnow::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
// Rows in host memory cross PCIe with about 2 us of latency: 128 blocks of 8 warps keep some 500 KB in flight, several
// times what 51 GB/s need.
constexpr uint32_t kMaxBlocks = 128;

// A warp per row, 16 bytes a lane.
__global__ void __launch_bounds__(kThreads) MoveRows(const MoveRowsParams p) {
  const uint32_t lane = threadIdx.x % 32, warp = blockIdx.x * kWarps + threadIdx.x / 32;
  const uint32_t vectors = static_cast<uint32_t>(p.row_bytes / sizeof(uint4));
  for (uint32_t i = warp; i < p.num_moves; i += gridDim.x * kWarps) {
    const RowMove move = p.moves[i];
    const uint4* const from = static_cast<const uint4*>(move.from);
    uint4* const to = static_cast<uint4*>(move.to);
    for (uint32_t vector = lane; vector < vectors; vector += 32) to[vector] = from[vector];
  }
}

void Launch(Stream stream, const MoveRowsParams& params) {
  if (params.num_moves == 0) return;
  const uint32_t blocks = std::min(kMaxBlocks, (params.num_moves + kWarps - 1) / kWarps);
  MoveRows<<<blocks, kThreads, 0, stream>>>(params);
}

}  // namespace

cudaError_t LoadRowKernels() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, MoveRows);
}

const RowKernels kRowKernels = {.move_rows = Launch};

}  // namespace winnow::cuda
