#pragma once
#include <cstdint>

#include "kernels/cuda/matmul/packed_codes.cuh"
#include "kernels/cuda/matmul/packed_fill.cuh"

// How a warp that multiplies reads its strips of a stage: codes as bf16 fragments, exact in every form, and the scales
// of groups, which are applied in f32 to the sums of a group.
namespace winnow::cuda {

// Of the output features of a warp's strips and kRows rows, as mma leaves them in its lanes: a lane has output features
// lane / 4 and 8 behind it, of two rows of each 8.
template <int kRows, int kStrips>
struct StripSums {
  float values[kStrips][kRows / 8][4];
};

// Scales, and for int4 zeros, of a lane's output features in its warp's strips, which are `apart` from each other.
template <typename Form, int kStrips>
class GroupScales {
 public:
  // Of a group that begins at `group` in shared memory.
  __device__ void Load(uint32_t group, int first_strip, int apart, int lane) {
    const uint32_t line = Form::kBits == 4 ? lane / 4 * 4 : 0;
#pragma unroll
    for (int i = 0; i < kStrips; ++i) {
      const uint32_t strip = group + (first_strip + i * apart) * (Form::kStripScales * 4) + line;
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        asm volatile("ld.shared.b32 %0, [%1];" : "=r"(words_[i][half]) : "r"(strip + half * 32) : "memory");
      }
    }
  }

  __device__ uint32_t MinusZeros(int strip, int half) const {
    return MinusI4Zeros(words_[strip][half] & kI4ZeroBits);
  }

  // sums += scale * of_group, rounded once.
  template <int kRows>
  __device__ void AddScaled(const StripSums<kRows, kStrips>& of_group, StripSums<kRows, kStrips>& sums) const {
#pragma unroll
    for (int strip = 0; strip < kStrips; ++strip) {
#pragma unroll
      for (int column = 0; column < kRows / 8; ++column) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const uint32_t word = words_[strip][kHalves == 1 ? 0 : j / 2];
          const float scale = __uint_as_float(Form::kBits == 4 ? word & ~kI4ZeroBits : word);
          float& sum = sums.values[strip][column][j];
          sum = __fmaf_rn(scale, of_group.values[strip][column][j], sum);
        }
      }
    }
  }

 private:
  static constexpr int kHalves = Form::kBits == 4 ? 2 : 1;

  uint32_t words_[kStrips][kHalves];
};

// A lane's operands of a strip's step, which begins at `strip` in shared memory: two fragments. minus_zeros(half) gives
// MinusI4Zeros of its output features.
template <typename Form, typename Zeros>
__device__ inline void LoadFragments(uint32_t strip, int lane, const Zeros& minus_zeros, uint32_t (&a)[2][4]) {
  if constexpr (Form::kBits == 8) {
    uint32_t words[4];
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(strip + lane * 16)
                 : "memory");
#pragma unroll
    for (int k16 = 0; k16 < 2; ++k16) {
      UnpackF8(words[2 * k16], a[k16][0], a[k16][2]);
      UnpackF8(words[2 * k16 + 1], a[k16][1], a[k16][3]);
    }
  } else {
    uint32_t words[2];
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
                 : "=r"(words[0]), "=r"(words[1])
                 : "r"(strip + lane * 8)
                 : "memory");
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t word = words[half], zeros = minus_zeros(half);
      a[0][half] = I4PairToBf16(word, zeros);
      a[0][half + 2] = I4PairToBf16(word >> 4, zeros);
      a[1][half] = I4PairToBf16(word >> 8, zeros);
      a[1][half + 2] = I4PairToBf16(word >> 12, zeros);
    }
  }
}

}  // namespace winnow::cuda
