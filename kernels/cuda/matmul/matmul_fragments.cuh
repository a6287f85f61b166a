#pragma once
#include <cstdint>

#include "kernels/cuda/matmul/matmul_forms.cuh"
#include "kernels/cuda/matmul/matmul_mma.cuh"
#include "kernels/cuda/matmul/matmul_parts.cuh"

// How a warp that multiplies reads its strip of a stage: weights as bf16 fragments, exact in every form, and the scales
// of groups, which are applied in f32 to the sums of a group.
namespace winnow::device {

// Codes that a lane has read and not used up: a matrix load brings int4 for two steps of 32 inputs.
template <typename Form>
struct FragmentCodes {
  uint32_t words[4];
};

// Scales, and for int4 zeros, of the output features that a lane has in a fragment: lane / 4 and 8 more.
template <typename Form>
class GroupScales {
 public:
  // `scales`: of the stage, in shared memory.
  __device__ GroupScales(uint32_t scales, int strip, int lane)
      : scales_(scales + (Form::kScaleOut == 1 ? strip * kStripOut + lane / 4 : strip) * 4) {}

  // Of a group of the stage.
  __device__ void Load(int group) {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      words_[half] = LoadWord(scales_ + (group * Form::kTileScales + half * 8) * 4);
    }
  }

  __device__ uint32_t MinusZeros(int half) const {
    return MinusI4Zeros(words_[half] & kI4ZeroBits);
  }

  // sums += scale * of_group, rounded once.
  template <int kRows>
  __device__ void AddScaled(const StripSums<kRows>& of_group, StripSums<kRows>& sums) const {
#pragma unroll
    for (int column = 0; column < kRows / 8; ++column) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32_t word = words_[kHalves == 1 ? 0 : j / 2];
        const float scale = __uint_as_float(Form::kBits == 4 ? word & ~kI4ZeroBits : word);
        sums.values[0][column][j] = __fmaf_rn(scale, of_group.values[0][column][j], sums.values[0][column][j]);
      }
    }
  }

 private:
  static constexpr int kHalves = Form::kScaleOut == 1 ? 2 : 1;

  static __device__ uint32_t LoadWord(uint32_t address) {
    uint32_t word;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
    return word;
  }

  const uint32_t scales_;
  uint32_t words_[kHalves];
};

template <typename Form>
class FragmentReader {
 public:
  // `weights`: the boxes of a stage.
  __device__ FragmentReader(uint32_t weights, int strip, int lane)
      : lane_(weights + (strip * kStripOut + lane % 16) * 128), piece_(((lane / 16) ^ (lane % 8)) * 16) {}

  // Inputs [32 * k32, 32 * k32 + 32) as two fragments.
  __device__ void Load(int k32, const GroupScales<Form>& scales, FragmentCodes<Form>& codes,
                       uint32_t (&a)[2][4]) const {
    // The swizzle: which piece of its row a lane reads, but for bits that the step in k flips.
    constexpr int kBoxSteps = Form::kWeightBoxK / 32;
    const uint32_t box = lane_ + k32 / kBoxSteps * (Form::kTileOut * 128);
    const int step = k32 % kBoxSteps;
    if constexpr (Form::kBits == 16) {
      LoadMatrices(a[0], box + (piece_ ^ (step * 64)));
      LoadMatrices(a[1], box + (piece_ ^ (step * 64 + 32)));
    } else if constexpr (Form::kBits == 8) {
      LoadMatrices(codes.words, box + (piece_ ^ (step * 32)));
#pragma unroll
      for (int k16 = 0; k16 < 2; ++k16) {
        UnpackF8(codes.words[2 * k16], a[k16][0], a[k16][2]);
        UnpackF8(codes.words[2 * k16 + 1], a[k16][1], a[k16][3]);
      }
    } else {
      if (step % 2 == 0) LoadMatrices(codes.words, box + (piece_ ^ (step / 2 * 32)));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t word = codes.words[step % 2 * 2 + half], minus_zeros = scales.MinusZeros(half);
        a[0][half] = I4PairToBf16(word, minus_zeros);
        a[0][half + 2] = I4PairToBf16(word >> 4, minus_zeros);
        a[1][half] = I4PairToBf16(word >> 8, minus_zeros);
        a[1][half + 2] = I4PairToBf16(word >> 12, minus_zeros);
      }
    }
  }

 private:
  const uint32_t lane_, piece_;
};

}  // namespace winnow::device
