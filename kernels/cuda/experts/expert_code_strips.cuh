#pragma once
#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/device/fence_reads.cuh"
#include "kernels/cuda/experts/expert_codes.cuh"
#include "kernels/cuda/experts/expert_strips.cuh"
#include "kernels/cuda/matmul/matmul_ring.cuh"

// Products of few rows with each of the experts that they touch, in MXFP4, bound by reading those once. What is to be
// done is a list of items, a strip of an active expert each, of which every block takes an equal range; so all of them
// read all the time, through a ring in shared memory that one warp fills. A unit of it is a piece of k of the 32 rows
// of W of a strip; the other warps take a step of a unit each, and add up at the end of an item. Which of them takes
// which step depends on the width alone, and so do sums.
namespace winnow::cuda {

inline constexpr int kCodeWarps = 8, kCodeThreads = 32 * (kCodeWarps + 1);
inline constexpr int kCodeStepK = 4 * kExpertBlock;  // the four lanes of a row have a block each
inline constexpr int kCodeStepBytes = kCodeStepK / 2;
inline constexpr int kUnitK = kCodeWarps * kCodeStepK;
// Rows of a unit lie so far apart that eight lanes that read 16 bytes of two rows meet no bank twice.
inline constexpr int kCodeRowBytes = kUnitK / 2 + 64;
inline constexpr int kCodeUnitBytes = kStripOutputs * kCodeRowBytes;
inline constexpr int kCodeBlockBytes = 112 * 1024;  // two blocks on a multiprocessor
inline constexpr int kMaxCodeStages = 6;

// How a block's shared memory is shared out: sums, stages, and scales of whole items, as many as may be under way.
struct CodeRing {
  __host__ __device__ CodeRing(int in_features, int groups)
      : units((in_features + kUnitK - 1) / kUnitK), scale_bytes(kStripOutputs * in_features / kExpertBlock) {
    sum_bytes = kCodeWarps * groups * 256 * static_cast<int>(sizeof(float));
    for (stages = kMaxCodeStages; stages > 2 && Bytes() > kCodeBlockBytes; --stages) {
    }
  }
  __host__ __device__ int scale_slots() const { return (stages + 2 * units - 2) / units; }
  __host__ __device__ int Bytes() const { return sum_bytes + stages * kCodeUnitBytes + scale_slots() * scale_bytes; }

  int units;  // of an item
  int scale_bytes, sum_bytes, stages;
};

// The items of a block, in order. Experts with more pairs than are multiplied at once have their items several times.
template <int kGroups, bool kGated>
class CodeCursor {
 public:
  __device__ CodeCursor(const StripProduct& p, const RoutedRows& routed) : routed_(routed) {
    strips_ = (p.out_features + kWidth - 1) / kWidth;
    const uint32_t items = *routed.num_active * strips_;
    item_ = static_cast<uint32_t>(uint64_t{blockIdx.x} * items / gridDim.x);
    end_ = static_cast<uint32_t>(uint64_t{blockIdx.x + 1} * items / gridDim.x);
    Read();
  }
  __device__ bool done() const { return item_ == end_; }
  __device__ uint32_t expert() const { return pairs_.expert; }
  __device__ uint32_t first() const { return pairs_.first; }
  __device__ uint32_t count() const { return min(pairs_.count, kGroups * 8u); }
  __device__ int strip() const { return static_cast<int>(item_ % strips_) * kWidth; }
  // Whether the next item has other pairs.
  __device__ bool Advance() {
    if (pairs_.count > kGroups * 8u) {
      pairs_.first += kGroups * 8u, pairs_.count -= kGroups * 8u;
      return true;
    }
    const bool has_same_pairs = (item_ + 1) % strips_ != 0 && pairs_.first == first_;
    ++item_;
    if (!has_same_pairs) Read();
    return !has_same_pairs;
  }

 private:
  static constexpr int kWidth = kGated ? kStripOutputs / 2 : kStripOutputs;

  __device__ void Read() {
    if (done()) return;
    const uint4 of = reinterpret_cast<const uint4*>(routed_.active)[item_ / strips_];
    pairs_ = {of.x, of.y, of.z};
    first_ = of.y;
  }

  const RoutedRows& routed_;
  uint32_t strips_, item_, end_, first_;
  ExpertPairs pairs_;
};

struct CodeShared {
  uint64_t full[kMaxCodeStages], empty[kMaxCodeStages];
};

// A lane's place in the row of W that it copies, or has operands of: row `line` of 32 of an item.
template <bool kGated>
__device__ inline int64_t CodeRowOf(const StripProduct& p, uint32_t expert, int strip, int line) {
  const int out = kGated && line >= 16 ? p.out_features + strip + line - 16 : strip + line;
  return static_cast<int64_t>(expert) * p.matrix_rows + out;
}

template <int kGroups, bool kGated>
__device__ void FillCodeRing(const StripProduct& p, const RoutedRows& routed, const CodeRing& ring, uint32_t stages,
                             uint32_t scales, CodeShared& shared) {
  const int lane = threadIdx.x % 32, row_bytes = p.in_features / 2;
  const uint64_t once = EvictFirst();
  int stage = 0, slot = 0;
  uint32_t parity = 1;
  for (CodeCursor<kGroups, kGated> cursor(p, routed); !cursor.done(); cursor.Advance()) {
    const int64_t row = CodeRowOf<kGated>(p, cursor.expert(), cursor.strip(), lane);
    const char* const from = static_cast<const char*>(p.weight) + row * row_bytes;
    for (int unit = 0; unit < ring.units; ++unit) {
      const int begin = unit * (kUnitK / 2), bytes = min(row_bytes - begin, kUnitK / 2);
      const uint32_t full = SharedAddress(&shared.full[stage]);
      const uint32_t to = stages + stage * kCodeUnitBytes + lane * kCodeRowBytes;
      WaitBarrier(SharedAddress(&shared.empty[stage]), parity);
      if (kTensorMaps && lane == 0) {
        ArriveExpectBytes(full, kStripOutputs * bytes + (unit == 0 ? ring.scale_bytes : 0));
      }
      __syncwarp();
      // Scales of 16 rows that follow each other.
      const bool has_scales = unit == 0 && lane % 16 == 0;
      const char* const scales_from = reinterpret_cast<const char*>(p.scales) + row * (row_bytes / 16);
      const uint32_t scales_to = scales + slot * ring.scale_bytes + lane / 16 * (ring.scale_bytes / 2);
      if (kTensorMaps) {
        CopyBytes(to, from + begin, bytes, full, once);
        if (has_scales) CopyBytes(scales_to, scales_from, ring.scale_bytes / 2, full, once);
      } else {
        const auto copy = [&](uint32_t target, const char* source, int count) {
          for (int at = 0; at < count; at += 16) {
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target + at), "l"(source + at) : "memory");
          }
        };
        copy(to, from + begin, bytes);
        if (has_scales) copy(scales_to, scales_from, ring.scale_bytes / 2);
        ArriveAfterCopies(full);
      }
      if (++stage == ring.stages) stage = 0, parity ^= 1;
    }
    if (++slot == ring.scale_slots()) slot = 0;
  }
}

// What a lane has of x in a step: its block's words of all its rows, as far as registers allow.
template <int kGroups>
struct StepRows {
  static constexpr int kWords = kGroups == 1 ? 4 : kGroups == 2 ? 2 : 1;

  __device__ void Load(const __nv_bfloat16* const (&x)[kGroups], int at) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        words[i][group] = *reinterpret_cast<const uint4*>(x[group] + at + i * 8);
      }
    }
  }

  uint4 words[kWords][kGroups];
};

// Adds the products of a step: a lane has a block of each of its four rows of W, and those inputs of x from `at` on, of
// which `rows` are the first.
template <int kGroups>
__device__ inline void MultiplyCodes(const uint4 (&codes)[2][2], const uint32_t (&factors)[2][2],
                                     const __nv_bfloat16* const (&x)[kGroups], int at, StepRows<kGroups>& rows,
                                     float (&part)[2][kGroups][4]) {
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    if (word > 0 && word % StepRows<kGroups>::kWords == 0) rows.Load(x, at + word * 8);
    uint4 a[2][2];
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint4& block = codes[tile][half];
        const uint32_t of_word = word == 0 ? block.x : word == 1 ? block.y : word == 2 ? block.z : block.w;
        a[tile][half] = CodesOfWord(of_word, factors[tile][half]);
      }
    }
    MultiplyStep(a, rows.words[word % StepRows<kGroups>::kWords], part);
  }
}

template <int kGroups, bool kGated>
__device__ void MultiplyItems(const StripProduct& p, const RoutedRows& routed, const CodeRing& ring, uint32_t stages,
                              uint32_t scales, CodeShared& shared, float* sums) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, line = lane / 4, piece = lane % 4 * kExpertBlock;
  const int scale_row = p.in_features / kExpertBlock;
  const __nv_bfloat16* x[kGroups];
  bool has_new_pairs = true;
  int stage = 0, slot = 0;
  uint32_t parity = 0;
  CodeCursor<kGroups, kGated> cursor(p, routed);
  while (!cursor.done()) {
    if (has_new_pairs) {
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        const uint32_t pair = cursor.first() + min(static_cast<uint32_t>(group * 8 + line), cursor.count() - 1);
        x[group] = p.x + static_cast<int64_t>(p.x_by_row ? routed.rows[pair] : pair) * p.in_features;
      }
    }
    float part[2][kGroups][4] = {};
    for (int unit = 0; unit < ring.units; ++unit) {
      const int at = unit * kUnitK + warp * kCodeStepK + piece;
      // Steps behind the end are left out; the last one may have fewer blocks, whose codes are then zeros.
      const bool exists = at < p.in_features, is_step = at - piece < p.in_features;
      const int x_at = exists ? at : 0;
      StepRows<kGroups> rows;
      if (is_step) rows.Load(x, x_at);
      WaitBarrier(SharedAddress(&shared.full[stage]), parity);
      uint4 codes[2][2];
      uint32_t factors[2][2];
      if (exists) {
#pragma unroll
        for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int row = tile * 16 + half * 8 + line;
            const uint32_t from =
                stages + stage * kCodeUnitBytes + row * kCodeRowBytes + (warp * kCodeStepK + piece) / 2;
            uint4& v = codes[tile][half];
            asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                         : "r"(from)
                         : "memory");
            uint32_t scale;
            asm volatile("ld.shared.u8 %0, [%1];"
                         : "=r"(scale)
                         : "r"(scales + slot * ring.scale_bytes + row * scale_row + at / kExpertBlock)
                         : "memory");
            factors[tile][half] = CodeFactor(scale);
          }
        }
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) codes[i / 2][i % 2] = make_uint4(0, 0, 0, 0), factors[i / 2][i % 2] = 0;
      }
      if (is_step) MultiplyCodes(codes, factors, x, x_at, rows, part);
      FenceReadsForCopies();
      __syncwarp();
      if (lane == 0) ArriveBarrier(SharedAddress(&shared.empty[stage]));
      if (++stage == ring.stages) stage = 0, parity ^= 1;
    }
    const auto meet = [] { asm volatile("bar.sync 1, %0;" ::"n"(kCodeWarps * 32) : "memory"); };
    LeaveSums(warp, part, sums);
    meet();
    WriteStrip<kCodeWarps, kGroups, kGated>(p, routed, cursor.expert(), cursor.first(), cursor.count(), cursor.strip(),
                                            sums, kCodeSumFactor);
    meet();
    if (++slot == ring.scale_slots()) slot = 0;
    has_new_pairs = cursor.Advance();
  }
}

// Any grid. kGroups: enough for all pairs that an expert can have, or 4 of them at a time.
template <int kGroups, bool kGated>
__global__ void __launch_bounds__(kCodeThreads, 2)
    ExpertCodeKernel(const __grid_constant__ StripProduct p, const __grid_constant__ RoutedRows routed) {
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ CodeShared shared;
  const CodeRing ring(p.in_features, kGroups);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < ring.stages; ++stage) {
      InitBarrier(SharedAddress(&shared.full[stage]), kTensorMaps ? 1 : 32);
      InitBarrier(SharedAddress(&shared.empty[stage]), kCodeWarps);
    }
    PublishBarriers();
  }
  __syncthreads();
  WaitForInputs();
  LetDependentsStart();
  const uint32_t stages = SharedAddress(memory) + ring.sum_bytes, scales = stages + ring.stages * kCodeUnitBytes;
  if (threadIdx.x / 32 == kCodeWarps) {
    FillCodeRing<kGroups, kGated>(p, routed, ring, stages, scales, shared);
  } else {
    MultiplyItems<kGroups, kGated>(p, routed, ring, stages, scales, shared, reinterpret_cast<float*>(memory));
  }
}

}  // namespace winnow::cuda
