#include <algorithm>

#include "kernels/cuda/device/row_moves.cuh"
#include "kernels/device/params/row_moves.h"

namespace winnow::device {
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

// Where the parts of row `row` behind an address lie, whether it is that of slots or not.
struct RowParts {
  uint2* codes;
  uint2* scales;

  __device__ RowParts(const Int8Slots& slots, const void* address, uint32_t row) {
    const size_t row_bytes = slots.row_bytes();
    char* const at = static_cast<char*>(const_cast<void*>(address)) + row * row_bytes;
    const auto offset = static_cast<size_t>(at - static_cast<char*>(slots.codes));
    const bool is_slot = offset < slots.num_slots * row_bytes;  // an address below them gives an offset beyond them
    const size_t slot = offset / row_bytes;
    char* const first_scales = static_cast<char*>(slots.codes) + slots.num_slots * slots.code_bytes;
    codes = reinterpret_cast<uint2*>(is_slot ? static_cast<char*>(slots.codes) + slot * slots.code_bytes : at);
    scales = reinterpret_cast<uint2*>(is_slot ? first_scales + slot * Int8Slots::kScaleBytes : at + slots.code_bytes);
  }
};

// The same, 8 bytes a lane, which is what rows with their scales are aligned to.
__global__ void __launch_bounds__(kThreads) MoveInt8Rows(const MoveRowsParams p, uint32_t rows_of_move) {
  const uint32_t lane = threadIdx.x % 32, warp = blockIdx.x * kWarps + threadIdx.x / 32;
  const uint32_t vectors = static_cast<uint32_t>(p.int8_slots.code_bytes / sizeof(uint2));
  for (uint64_t i = warp; i < uint64_t{p.num_moves} * rows_of_move; i += gridDim.x * kWarps) {
    const RowMove move = p.moves[i / rows_of_move];
    const auto row = static_cast<uint32_t>(i % rows_of_move);
    const RowParts from(p.int8_slots, move.from, row), to(p.int8_slots, move.to, row);
    for (uint32_t vector = lane; vector < vectors; vector += 32) to.codes[vector] = from.codes[vector];
    if (lane == 0) *to.scales = *from.scales;
  }
}

void Launch(Stream stream, const MoveRowsParams& params) {
  if (params.num_moves == 0) return;
  const bool is_int8 = params.int8_slots.codes != nullptr;
  const auto rows_of_move = is_int8 ? static_cast<uint32_t>(params.row_bytes / params.int8_slots.row_bytes()) : 1u;
  const uint64_t rows = uint64_t{params.num_moves} * rows_of_move;
  const auto blocks = static_cast<uint32_t>(std::min<uint64_t>(kMaxBlocks, (rows + kWarps - 1) / kWarps));
  if (is_int8) {
    MoveInt8Rows<<<blocks, kThreads, 0, stream>>>(params, rows_of_move);
  } else {
    MoveRows<<<blocks, kThreads, 0, stream>>>(params);
  }
}

}  // namespace

cudaError_t LoadRowKernels() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, MoveRows);
}

const RowKernels kRowKernels = {.move_rows = Launch};

}  // namespace winnow::device
