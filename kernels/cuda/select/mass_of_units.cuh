#pragma once
#include <cuda_bf16.h>

#include <cstdint>

#include "common/base/kv_layout.h"
#include "kernels/cuda/select/rank_units.cuh"

// Units read one after the other until their mass is enough. A round reads the next ones of all lists at once; the last
// block of a list to end decides, unit by unit, whether it may stop, so that rounds behind that read nothing. Rounds
// grow, so that at most twice as much is read as is taken.

namespace winnow::device {

inline constexpr int kMassWarps = 8;
inline constexpr uint32_t kMassGranule = 16;  // rows that a warp scores together

// Keys of 16 rows times eight queries on tensor cores. A lane loads 16 bytes at a time of two rows, straight into
// operand registers; for that the dimensions are permuted, alike in keys and queries.
template <int kHeadDim>
struct GranuleScorer {
  static constexpr int kStride = 2 * kHeadDim + 16;  // bytes of a query, padded against bank conflicts
  static constexpr int kBytes = kMaxUnitHeads * kStride;

  // Rounds queries [group, head_dim] to bf16; ends with a barrier.
  __device__ static void LoadQueries(const float* queries, int group, uint8_t* operand) {
    for (uint32_t i = threadIdx.x; i < kMaxUnitHeads * kHeadDim; i += blockDim.x) {
      const uint32_t q = i / kHeadDim, d = i % kHeadDim;
      const float value = q < group ? queries[q * kHeadDim + d] : 0;
      *reinterpret_cast<__nv_bfloat16*>(operand + q * kStride + 2 * d) = __float2bfloat16_rn(value);
    }
    __syncthreads();
  }

  // Scores, not scaled: rows lane / 4 and lane / 4 + 8 by queries 2 * (lane % 4) and the next.
  __device__ static void Score(const uint8_t* keys, int64_t key_stride, const uint8_t* operand, float (&sums)[4]) {
    const uint32_t lane = threadIdx.x % 32, row = lane / 4, part = lane % 4;
    constexpr int kChunks = kHeadDim / 32;
    uint4 low[kChunks], high[kChunks];
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      low[c] = __ldg(reinterpret_cast<const uint4*>(keys + row * key_stride + 64 * c + 16 * part));
      high[c] = __ldg(reinterpret_cast<const uint4*>(keys + (row + 8) * key_stride + 64 * c + 16 * part));
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[i] = 0;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const uint4 query = *reinterpret_cast<const uint4*>(operand + row * kStride + 64 * c + 16 * part);
      Multiply(sums, low[c].x, high[c].x, low[c].y, high[c].y, query.x, query.y);
      Multiply(sums, low[c].z, high[c].z, low[c].w, high[c].w, query.z, query.w);
    }
  }

 private:
  __device__ static void Multiply(float (&sums)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                  uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
};

// Log of a sum of exponentials, as its largest exponent and the sum relative to it.
struct LogSum {
  float most = -INFINITY, sum = 0;
  __device__ __forceinline__ void Add(float score) {
    const float both = fmaxf(most, score);
    if (both > -INFINITY) sum = sum * __expf(most - both) + __expf(score - both);
    most = both;
  }
  __device__ __forceinline__ void Join(const LogSum& other) {
    const float both = fmaxf(most, other.most);
    if (both > -INFINITY) sum = sum * __expf(most - both) + other.sum * __expf(other.most - both);
    most = both;
  }
  __device__ __forceinline__ float Log() const { return most == -INFINITY ? -INFINITY : most + __logf(sum); }
};

// Rows of a list that one warp adds up, granule by granule: of a unit, or of sinks and window.
template <int kHeadDim>
struct RowReader {
  const UnitSelectParams& p;
  const SelectionList& list;
  const uint8_t* operand;
  LogSum sums[2] = {};  // of queries 2 * (lane % 4) and the next

  template <typename Counts>
  __device__ __forceinline__ void Read(uint32_t granule, Counts counts) {
    const uint32_t first = granule * kMassGranule;
    const uint32_t block = p.list.blocks[list.first_block + first / kBlockTokens];
    const auto* keys = static_cast<const uint8_t*>(p.list.keys.keys) + block * p.list.keys.block_stride +
                       first % kBlockTokens * p.list.keys.key_stride;
    float scores[4];
    GranuleScorer<kHeadDim>::Score(keys, p.list.keys.key_stride, operand, scores);
    const uint32_t row = first + threadIdx.x % 32 / 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (counts(row + (i < 2 ? 0 : 8))) sums[i % 2].Add(scores[i] * p.list.scale);
    }
  }
  // Over the warp's rows: lane i < 4 then holds queries 2 i and 2 i + 1.
  __device__ __forceinline__ void Finish() {
#pragma unroll
    for (int step = 16; step >= 4; step /= 2) {
#pragma unroll
      for (LogSum& sum : sums) {
        sum.Join({__shfl_xor_sync(~0u, sum.most, step), __shfl_xor_sync(~0u, sum.sum, step)});
      }
    }
  }
};

// What is held before any unit is read: sinks and window. By one block.
template <int kHeadDim>
__device__ __forceinline__ void ReadFixedRows(const UnitSelectParams& p, const SelectionList& list, uint32_t index,
                                              const uint8_t* operand, const UnitScratch& scratch,
                                              LogSum (*warp_sums)[kMaxUnitHeads]) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  RowReader<kHeadDim> reader{p, list, operand};
  const uint32_t sinks = (min(list.first, list.num_keys) + kMassGranule - 1) / kMassGranule;
  const uint32_t window = max(list.last / kMassGranule, sinks);
  const uint32_t end = (list.num_keys + kMassGranule - 1) / kMassGranule, granules = sinks + end - min(window, end);
  const auto counts = [&](uint32_t row) { return row < list.num_keys && (row < list.first || row >= list.last); };
  for (uint32_t i = warp; i < granules; i += kMassWarps) reader.Read(i < sinks ? i : window + i - sinks, counts);
  reader.Finish();
  if (lane < 4) {
    warp_sums[warp][2 * lane] = reader.sums[0];
    warp_sums[warp][2 * lane + 1] = reader.sums[1];
  }
  __syncthreads();
  if (threadIdx.x >= kMaxUnitHeads) return;
  LogSum all;
  for (int w = 0; w < kMassWarps; ++w) all.Join(warp_sums[w][threadIdx.x]);
  double* held = scratch.held + (static_cast<size_t>(index) * kMaxUnitHeads + threadIdx.x) * 3;
  held[0] = all.most;
  held[1] = all.sum;
  held[2] = INFINITY;
}

// Adds the units [begin, end) of the order to what is held, one after the other, and finds the first behind which the
// mass is enough. By one block, a warp to a query; `shares` [end - begin][8] is shared memory.
__device__ __forceinline__ void DecideStop(const UnitSelectParams& p, const SelectionList& list, uint32_t index,
                                           uint32_t begin, uint32_t end, const UnitScratch& scratch, float* shares,
                                           uint32_t* stop) {
  const uint32_t lane = threadIdx.x % 32, query = threadIdx.x / 32;
  const uint32_t units = (list.last + p.unit_tokens - 1) / p.unit_tokens - list.first / p.unit_tokens;
  if (threadIdx.x == 0) *stop = kNotStopped;
  if (query < p.list.group) {
    double* held = scratch.held + (static_cast<size_t>(index) * kMaxUnitHeads + query) * 3;
    double most = held[0], sum = held[1], least = held[2];
    for (uint32_t base = begin; base < end; base += 32) {
      const uint32_t i = base + lane;
      const double log_mass =
          i < end ? scratch.log_mass[(static_cast<size_t>(index) * scratch.max_units + i) * kMaxUnitHeads + query]
                  : -static_cast<double>(INFINITY);
      double largest = log_mass, smallest = i < end ? log_mass : static_cast<double>(INFINITY);
#pragma unroll
      for (int step = 16; step > 0; step /= 2) largest = fmax(largest, __shfl_xor_sync(~0u, largest, step));
      const double both = fmax(most, largest);
      if (both == -static_cast<double>(INFINITY)) {
        if (i < end) shares[(i - begin) * kMaxUnitHeads + query] = 0;
        continue;
      }
      sum *= exp(most - both);
      most = both;
      double prefix = exp(log_mass - most);
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const double before = __shfl_up_sync(~0u, prefix, step), lower = __shfl_up_sync(~0u, smallest, step);
        if (lane >= step) {
          prefix += before;
          smallest = fmin(smallest, lower);
        }
      }
      smallest = fmin(smallest, least);
      const uint32_t left = units - 1 - i;
      if (i < end) {
        const double log_held = most + log(sum + prefix);
        const double share = left == 0 ? 1 : 1 / (1 + exp(smallest + log(static_cast<double>(left)) - log_held));
        shares[(i - begin) * kMaxUnitHeads + query] = static_cast<float>(share);
      }
      sum += __shfl_sync(~0u, prefix, 31);
      least = __shfl_sync(~0u, smallest, 31);
    }
    if (lane == 0) {
      held[0] = most;
      held[1] = sum;
      held[2] = least;
    }
  }
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < end - begin; i += blockDim.x) {
    double mass = 0;
    for (int q = 0; q < p.list.group; ++q) mass += shares[i * kMaxUnitHeads + q];
    if (mass >= double{p.list.min_mass} * p.list.group) atomicMin(stop, begin + i + 1);
  }
  __syncthreads();
}

// Units [begin, end) of the order of each list, a warp to a unit; in the first round one more block reads the fixed
// rows.
template <int kHeadDim>
__global__ void __launch_bounds__(kMassWarps * 32)
    ReadUnits(const __grid_constant__ UnitSelectParams p, UnitScratch scratch, uint32_t begin, uint32_t end) {
  extern __shared__ __align__(16) uint8_t dynamic[];
  __shared__ __align__(16) uint8_t operand[GranuleScorer<kHeadDim>::kBytes];
  __shared__ LogSum fixed[kMassWarps][kMaxUnitHeads];
  __shared__ uint32_t stop;
  __shared__ bool is_last;
  WaitForInputs();
  LetDependentsStart();
  const uint32_t index = blockIdx.y;
  if (KeepsSelection(p, index) || scratch.stop[index] != kNotStopped) return;
  const SelectionList list = p.list.lists[index];
  const uint32_t in_budget = scratch.in_budget[index], until = min(end, in_budget);
  GranuleScorer<kHeadDim>::LoadQueries(p.list.queries + static_cast<size_t>(list.query) * p.list.group * kHeadDim,
                                       p.list.group, operand);
  const uint32_t lane = threadIdx.x % 32, i = begin + blockIdx.x * kMassWarps + threadIdx.x / 32;
  const UnitRows range{p.unit_tokens, list.first, list.last};
  const uint32_t reading = (end - begin + kMassWarps - 1) / kMassWarps;
  if (blockIdx.x == reading) {
    ReadFixedRows<kHeadDim>(p, list, index, operand, scratch, fixed);
  } else if (i < until) {
    const uint32_t unit = scratch.order[static_cast<size_t>(index) * scratch.max_units + i];
    const uint32_t first = range.Begin(unit), last = range.End(unit);
    RowReader<kHeadDim> reader{p, list, operand};
    const auto counts = [&](uint32_t row) { return row >= first && row < last; };
    for (uint32_t g = first / kMassGranule; g <= (last - 1) / kMassGranule; ++g) reader.Read(g, counts);
    reader.Finish();
    if (lane < 4) {
      float* to = scratch.log_mass + (static_cast<size_t>(index) * scratch.max_units + i) * kMaxUnitHeads + 2 * lane;
      to[0] = reader.sums[0].Log();
      to[1] = reader.sums[1].Log();
    }
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicInc(&scratch.arrivals[index], gridDim.x - 1) == gridDim.x - 1;
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  if (begin >= until) return;
  DecideStop(p, list, index, begin, until, scratch, reinterpret_cast<float*>(dynamic), &stop);
  if (threadIdx.x == 0 && stop != kNotStopped) scratch.stop[index] = stop;
}

// Writes what has been read. One block to a list.
__global__ void __launch_bounds__(kRankThreads)
    EmitReadUnits(const __grid_constant__ UnitSelectParams p, UnitScratch scratch) {
  __shared__ uint32_t warp_sums[kRankWarps];
  __shared__ uint32_t bitmap[kMaxPageUnits / 32];
  WaitForInputs();
  LetDependentsStart();
  const uint32_t index = blockIdx.x;
  if (KeepsSelection(p, index)) return;
  const SelectionList list = p.list.lists[index];
  if (list.last <= list.first || list.budget == 0) return;
  const UnitRows range{p.unit_tokens, list.first, list.last};
  const uint32_t* order = scratch.order + static_cast<size_t>(index) * scratch.max_units;
  const uint32_t count = min(scratch.stop[index], scratch.in_budget[index]);
  uint32_t rows = 0;
  for (uint32_t base = 0; base < count; base += kRankThreads) {
    const uint32_t i = base + threadIdx.x;
    rows += SumOverBlock(i < count ? range.Rows(order[i]) : 0, warp_sums).all;
  }
  EmitUnits(p, range, nullptr, order, count, rows > list.budget ? rows - list.budget : 0, index, bitmap, warp_sums);
}

}  // namespace winnow::device
