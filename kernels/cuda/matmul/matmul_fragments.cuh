#pragma once
#include <cstdint>

#include "kernels/cuda/matmul/matmul_forms.cuh"
#include "kernels/cuda/matmul/matmul_mma.cuh"
#include "kernels/cuda/matmul/matmul_parts.cuh"

// How a warp that multiplies reads its strip of a stage: weights as bf16 fragments, exact in every form, and the scales
// of groups, which are applied in f32 to the sums of a group.
namespace winnow::device {

// Codes that a lane has read and not used up: a piece of int4 serves two steps of 32 inputs.
struct FragmentCodes {
  uint32_t words[4];
};

// Scales, and for int4 zeros, of the output features that a lane has in a fragment: lane / 4 and 8 more.
template <typename Form>
class GroupScales {
 public:
  // Of a group of the stage whose scales lie at `scales` in shared memory.
  __device__ void Load(uint32_t scales, int group, int strip, int lane) {
    const uint32_t from =
        scales + (group * Form::kTileScales + (kHalves == 2 ? strip * kStripOut + lane / 4 : strip)) * 4;
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      asm volatile("ld.shared.b32 %0, [%1];" : "=r"(words_[half]) : "r"(from + half * 32) : "memory");
    }
  }

  __device__ uint32_t MinusZeros(int half) const {
    return MinusI4Zeros(words_[half % kHalves] & kI4ZeroBits);
  }

  // sums += scale * of_group, rounded once.
  template <int kRows>
  __device__ void AddScaled(const StripSums<kRows>& of_group, StripSums<kRows>& sums) const {
#pragma unroll
    for (int column = 0; column < kRows / 8; ++column) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32_t word = words_[j / 2 % kHalves];
        const float scale = __uint_as_float(Form::kBits == 4 ? word & ~kI4ZeroBits : word);
        sums.values[column][j] = __fmaf_rn(scale, of_group.values[column][j], sums.values[column][j]);
      }
    }
  }

 private:
  static constexpr int kHalves = Form::kScaleOut == 1 ? 2 : 1;

  uint32_t words_[kHalves] = {};
};

template <typename Form>
class FragmentReader {
 public:
  // `weights`: those of a stage.
  __device__ FragmentReader(uint32_t weights, int strip, int lane)
      : lane_(weights +
              (Form::kIsPacked ? strip * Form::kStripBytes + lane * 16 : (strip * kStripOut + lane % 16) * 128)),
        swizzled_(((lane / 16) ^ (lane % 8)) * 16) {}

  // Inputs [32 * k32, 32 * k32 + 32) as two fragments.
  __device__ void Load(int k32, const GroupScales<Form>& scales, FragmentCodes& codes, uint32_t (&a)[2][4]) const {
    if constexpr (Form::kBits == 16) {
      // The swizzle: which piece of its row a lane reads, but for bits that the step in k flips.
      const uint32_t box = lane_ + k32 / 2 * (Form::kTileOut * 128);
      LoadMatrices(a[0], box + (swizzled_ ^ (k32 % 2 * 64)));
      LoadMatrices(a[1], box + (swizzled_ ^ (k32 % 2 * 64 + 32)));
    } else {
      if (k32 * kPieces % kSteps == 0) LoadPiece(k32 * kPieces / kSteps, codes);
      Unpack(k32, scales, codes, a);
    }
  }

  // The same of packed weights, whose codes have been read.
  __device__ static void Unpack(int k32, const GroupScales<Form>& scales, const FragmentCodes& codes,
                                uint32_t (&a)[2][4]) {
    if constexpr (Form::kBits == 8) {
#pragma unroll
      for (int k16 = 0; k16 < 2; ++k16) {
        UnpackF8(codes.words[2 * k16], a[k16][0], a[k16][2]);
        UnpackF8(codes.words[2 * k16 + 1], a[k16][1], a[k16][3]);
      }
    } else {
#pragma unroll
      for (int k16 = 0; k16 < 2; ++k16) {
#pragma unroll
        for (int pair = 0; pair < 4; ++pair) {
          a[k16][pair] = I4PairToBf16(codes.words[k32 % 2 * 2 + k16] >> 4 * pair, scales.MinusZeros(pair % 2));
        }
      }
    }
  }

  // A lane's codes of a piece, one of kPieces.
  __device__ void LoadPiece(int piece, FragmentCodes& codes) const {
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(codes.words[0]), "=r"(codes.words[1]), "=r"(codes.words[2]), "=r"(codes.words[3])
                 : "r"(lane_ + piece * 512)
                 : "memory");
  }

  static constexpr int kSteps = Form::kChunkK / 32;
  static constexpr int kPieces = Form::kChunkK * Form::kBits / 256;

 private:
  const uint32_t lane_, swizzled_;
};

}  // namespace winnow::device
