#pragma once
#include <cstdint>

#include "kernels/cuda/matmul/matmul_fill.cuh"
#include "kernels/cuda/matmul/matmul_fragments.cuh"
#include "kernels/cuda/matmul/matmul_mma.cuh"
#include "kernels/cuda/matmul/matmul_parts.cuh"

// Units of packed weights and few rows of x, multiplied by warps of their own (mma.sync). The memory leaves a unit some
// 490 cycles, and a warp would spend more than that on waiting: for the unit, for its codes, for one product after the
// other. So units are taken in twos, whose products do not wait for each other.
namespace winnow::device {

template <int kRows, typename Form>
class FewRowUnits {
  using Layout = DecodeLayout<kRows, Form>;
  using Sums = StripSums<kRows>;
  using Reader = FragmentReader<Form>;
  static constexpr int kColumns = kRows / 8, kSteps = Reader::kSteps, kPieces = Reader::kPieces;
  static constexpr int kGroupSteps = Form::kHasGroups ? Form::kGroup / 32 : kSteps;
  static constexpr int kGroups = kSteps / kGroupSteps;

 public:
  // Without groups all products of a tile are one chain, whose order counts.
  static constexpr int kTogether = Form::kHasGroups ? 2 : 1;
  // Scales that nothing but the last sum has used may be under way; codes and rows are in products by then.
  static constexpr bool kNeedsFence = Form::kHasGroups && Form::kBits == 8;

  __device__ FewRowUnits(int strip, int lane) : strip_(strip), lane_(lane) {}

  // Multiplies kUnits units, which lie at `stages`, their scales at `scales`.
  template <int kUnits>
  __device__ void Multiply(const uint32_t (&stages)[kUnits], const uint32_t (&scales)[kUnits], Sums& sums) const {
    FragmentCodes codes[kUnits][kPieces];
    GroupScales<Form> of_unit[kUnits][kGroups];
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const Reader fragments(stages[u], strip_, lane_);
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) fragments.LoadPiece(piece, codes[u][piece]);
      if constexpr (Form::kHasGroups) {
#pragma unroll
        for (int group = 0; group < kGroups; ++group) of_unit[u][group].Load(scales[u], group, strip_, lane_);
      }
    }
    __syncwarp();  // all of these reads are under way from here on
    Sums of_group[kUnits][kGroups] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t b[kUnits][kColumns][4];
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
#pragma unroll
        for (int column = 0; column < kColumns; ++column) LoadMatrices(b[u][column], RowsAt(stages[u], step, column));
      }
      uint32_t a[kUnits][2][4];
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        Reader::Unpack(step, of_unit[u][step / kGroupSteps], codes[u][step * kPieces / kSteps], a[u]);
      }
#pragma unroll
      for (int k16 = 0; k16 < 2; ++k16) {
#pragma unroll
        for (int u = 0; u < kUnits; ++u) {
          Sums& to = Form::kHasGroups ? of_group[u][step / kGroupSteps] : sums;
#pragma unroll
          for (int column = 0; column < kColumns; ++column) {
            MultiplyAccumulate(to.values[column], a[u][k16], b[u][column][2 * k16], b[u][column][2 * k16 + 1]);
          }
        }
      }
    }
    if constexpr (Form::kHasGroups) {
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
#pragma unroll
        for (int group = 0; group < kGroups; ++group) of_unit[u][group].AddScaled(of_group[u][group], sums);
      }
    }
  }

 private:
  __device__ uint32_t RowsAt(uint32_t stage, int step, int column) const {
    const uint32_t piece = ((lane_ / 8) ^ (lane_ % 8)) * 16;
    return stage + Layout::kWeightBytes + lane_ % 8 * 128 + step / 2 * Layout::kRowBoxBytes + column * 8 * 128 +
           (piece ^ (step % 2 * 64));
  }

  const int strip_, lane_;
};

}  // namespace winnow::device
