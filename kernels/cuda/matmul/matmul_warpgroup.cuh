#pragma once
#include <cstdint>

#include "kernels/cuda/device/hopper.cuh"
#include "kernels/cuda/matmul/matmul_fill.cuh"
#include "kernels/cuda/matmul/matmul_fragments.cuh"
#include "kernels/cuda/matmul/matmul_parts.cuh"

// Units of packed weights multiplied by warpgroups, four strips at once (wgmma). Weights become bf16 in registers and
// go to the tensor cores from there; these read x from shared memory themselves, once for four warps, and work while
// the next weights are converted.
namespace winnow::device {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
inline constexpr bool kWarpgroups = true;
#else
inline constexpr bool kWarpgroups = false;
#endif

// d (+)= a b, m64 x 8 kColumns x k16: `a` as mma.sync's, b from shared memory with k along the rows of a swizzled
// block.
__device__ inline void MultiplyRows(float (&d)[1][4], const uint32_t (&a)[4], uint64_t b, bool add) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %9, 0; wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, p, 1, 1, 0; }"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));
}
__device__ inline void MultiplyRows(float (&d)[2][4], const uint32_t (&a)[4], uint64_t b, bool add) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %13, 0; wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11}, %12, p, 1, 1, 0; }"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]),
        "+f"(d[1][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));
}
__device__ inline void MultiplyRows(float (&d)[4][4], const uint32_t (&a)[4], uint64_t b, bool add) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %21, 0; wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, {%16, %17, %18, %19}, %20, p, 1, 1, 0; }"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]),
        "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]),
        "+f"(d[3][2]), "+f"(d[3][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));
}
__device__ inline void MultiplyRows(float (&d)[8][4], const uint32_t (&a)[4], uint64_t b, bool add) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %37, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "
      "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, {%32, %33, %34, %35}, %36, p, 1, 1, 0; }"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]),
        "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]),
        "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]),
        "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]), "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]),
        "+f"(d[7][0]), "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));
}

// Of one of the warps.
template <int kRows, typename Form>
class WarpgroupUnits {
  using Layout = DecodeLayout<kRows, Form>;
  using Sums = StripSums<kRows>;
  // Products read the fragments of a step from registers while those of the next one are made beside them; with 64 rows
  // there is no room for two, and the block's other warpgroup makes its own meanwhile.
  static constexpr int kBuffers = kRows == 64 ? 1 : 2;
  static constexpr int kSteps = Form::kChunkK / 32;
  static constexpr int kGroupSteps = Form::kHasGroups ? Form::kGroup / 32 : kSteps;

 public:
  static constexpr bool kRunsOn = true;  // products of a unit run on when Multiply returns
  // Whether something of a unit may be under way to registers when it is released: scales that nothing has used yet.
  // Codes, and scales with zeros, are in products that have ended.
  static constexpr bool kNeedsFence = Form::kHasGroups && Form::kBits == 8;

  __device__ WarpgroupUnits(int strip, int lane) : strip_(strip), lane_(lane) {}

  // Begins with a unit that lies at `stage`. Calls release() when all units before it have been read.
  template <typename Release>
  __device__ void Multiply(uint32_t stage, uint32_t scales, Sums& sums, const Release& release) {
    const FragmentReader<Form> fragments(stage, strip_, lane_);
    const uint64_t rows = SwizzledBlock<64>::AlongRows(stage + Layout::kWeightBytes);
    const uint32_t rows_low = static_cast<uint32_t>(rows), rows_high = static_cast<uint32_t>(rows >> 32);
    FragmentCodes codes;
    uint32_t a[kBuffers][2][4];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const bool begins_group = Form::kHasGroups && step % kGroupSteps == 0;
      GroupScales<Form> of_step = scales_;
      if (begins_group) of_step.Load(scales, step / kGroupSteps, strip_, lane_);
      WgmmaWait<kBuffers - 1>();
      fragments.Load(step, of_step, codes, a[step % kBuffers]);
      if (step == 0 || begins_group) {
        WgmmaWait<0>();
        if constexpr (Form::kHasGroups) AddGroup(sums);
        if (step == 0) release();
        scales_ = of_step;
      }
      WgmmaFence();
#pragma unroll
      for (int k16 = 0; k16 < 2; ++k16) {
        const uint32_t low = rows_low + (step / 2 * Layout::kRowBoxBytes + step % 2 * 64 + k16 * 32) / 16;
        Sums& to = Form::kHasGroups ? of_group_ : sums;
        MultiplyRows(to.values, a[step % kBuffers][k16], static_cast<uint64_t>(rows_high) << 32 | low,
                     /*add=*/!(begins_group && k16 == 0));
      }
      WgmmaCommit();
    }
  }

  // Until the sums are whole, at the end of a tile.
  __device__ void End(Sums& sums) {
    WgmmaWait<0>();
    if constexpr (Form::kHasGroups) {
      AddGroup(sums);
      scales_ = {};
      of_group_ = {};
    } else {
      Hold(sums);
    }
  }

 private:
  __device__ void AddGroup(Sums& sums) {
    Hold(of_group_);
    scales_.AddScaled(of_group_, sums);
  }
  static __device__ void Hold(Sums& sums) {
#pragma unroll
    for (int column = 0; column < kRows / 8; ++column) HoldRegisters(sums.values[column]);
  }

  const int strip_, lane_;
  Sums of_group_ = {};  // of the group that runs
  GroupScales<Form> scales_;
};

}  // namespace winnow::device
