#pragma once
#include <cfloat>
#include <cstdint>

#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/device/params/page_units.h"

// Units of a list in the order of their importance. A list has some hundred to a few thousand of them: one block sorts
// them all in shared memory, as reading them one after the other wants the whole order.

namespace winnow::device {

inline constexpr int kRankThreads = 1024;
inline constexpr int kRankWarps = kRankThreads / 32;
inline constexpr uint32_t kNotStopped = ~0u;

// Memory of one call, by list.
struct UnitScratch {
  uint32_t* order = nullptr;      // [lists, max_units] units, the most important one first
  uint32_t* in_budget = nullptr;  // [lists] of them, that the budget lasts for
  uint32_t* stop = nullptr;       // [lists] of those, that are taken; kNotStopped: not known yet
  float* log_mass = nullptr;      // [lists, max_units, 8] log of the sum of e^score of a unit's rows, by query
  double* held = nullptr;         // [lists, 8, 3] largest exponent, sum relative to it, least log_mass so far
  uint32_t* arrivals = nullptr;   // [lists]
  uint32_t max_units = 0;
};

// Rows of a unit that may be selected.
struct UnitRows {
  uint32_t unit_rows, first, last;
  __device__ __forceinline__ uint32_t Begin(uint32_t unit) const { return max(unit * unit_rows, first); }
  __device__ __forceinline__ uint32_t End(uint32_t unit) const { return min((unit + 1) * unit_rows, last); }
  __device__ __forceinline__ uint32_t Rows(uint32_t unit) const { return End(unit) - Begin(unit); }
};

// The position whose selection `position` uses (AnchorPosition in common/selection/attended_set.h).
__device__ __forceinline__ uint32_t AnchorOf(uint32_t position, uint32_t prompt_tokens, uint32_t interval) {
  return position <= prompt_tokens ? position : max(position - position % interval, prompt_tokens);
}

// True for a list whose selection stays as it is.
__device__ __forceinline__ bool KeepsSelection(const UnitSelectParams& p, uint32_t list) {
  if (p.positions == nullptr) return false;
  const uint32_t row = list / p.num_kv_heads, position = p.positions[row];
  return position == ~0u ||
         (p.reuse_interval > 1 && AnchorOf(position, p.prompt_tokens[row], p.reuse_interval) != position);
}

__device__ __forceinline__ bool TakesByMass(const UnitSelectParams& p, const SelectionList& list) {
  return p.list.min_mass > 0 && !(p.list.takes_all_that_fit && list.last - list.first <= list.budget);
}

// Sum over the threads before this one, and over all. Two barriers.
struct BlockSums {
  uint32_t before, all;
};
__device__ __forceinline__ BlockSums SumOverBlock(uint32_t value, uint32_t* warp_sums) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  uint32_t sum = value;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const uint32_t other = __shfl_up_sync(~0u, sum, step);
    if (lane >= step) sum += other;
  }
  __syncthreads();
  if (lane == 31) warp_sums[warp] = sum;
  __syncthreads();
  const uint32_t of_warp = lane < warps ? warp_sums[lane] : 0;
  return {__reduce_add_sync(~0u, lane < warp ? of_warp : 0) + sum - value, __reduce_add_sync(~0u, of_warp)};
}

// Writes the rows of the units [order, order + count), ascending, the last of them without its last `excess` rows.
// `bitmap` has a bit for each unit.
__device__ __forceinline__ void EmitUnits(const UnitSelectParams& p, const UnitRows& range, const uint64_t* ranks,
                                          const uint32_t* order, uint32_t count, uint32_t excess, uint32_t out,
                                          uint32_t* bitmap, uint32_t* warp_sums) {
  const uint32_t end = (range.last + range.unit_rows - 1) / range.unit_rows, words = (end + 31) / 32;
  const auto unit_at = [&](uint32_t i) { return ranks != nullptr ? ~static_cast<uint32_t>(ranks[i]) : order[i]; };
  for (uint32_t word = threadIdx.x; word < words; word += blockDim.x) bitmap[word] = 0;
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) atomicOr(&bitmap[unit_at(i) / 32], 1u << unit_at(i) % 32);
  __syncthreads();
  const uint32_t least = count > 0 ? unit_at(count - 1) : ~0u;
  const auto rows_of = [&](uint32_t unit) {
    if ((bitmap[unit / 32] >> unit % 32 & 1) == 0) return 0u;
    return range.Rows(unit) - (unit == least ? excess : 0);
  };
  uint32_t* selected = p.selected + static_cast<size_t>(out) * p.list.max_budget;
  uint32_t total = 0;
  for (uint32_t base = 0; base < end; base += blockDim.x) {
    const uint32_t unit = base + threadIdx.x, rows = unit < end ? rows_of(unit) : 0;
    const BlockSums sums = SumOverBlock(rows, warp_sums);
    const uint32_t begin = unit < end ? range.Begin(unit) : 0;
    // A warp writes the rows of its 32 units together, so that stores are wide.
    for (int lane = 0; lane < 32; ++lane) {
      const uint32_t place = __shfl_sync(~0u, total + sums.before, lane), from = __shfl_sync(~0u, begin, lane);
      const uint32_t n = __shfl_sync(~0u, rows, lane);
      for (uint32_t i = threadIdx.x % 32; i < n; i += 32) selected[place + i] = from + i;
    }
    total += sums.all;
  }
  if (threadIdx.x == 0) p.counts[static_cast<size_t>(out) * p.count_stride] = total;
}

__device__ __forceinline__ uint32_t KeyOfImportance(float value) {
  const uint32_t bits = __float_as_uint(value + 0.0f);
  return bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u);
}

// What pages are chosen by.
struct PageImportance {
  const float* scores;  // of the list's first query
  int64_t stride;
  int heads;
  Aggregation aggregation;
  const float* lse;  // [8] of the pages' softmaxes, +infinity where no score is finite

  __device__ __forceinline__ float Of(uint32_t page) const {
    float value = aggregation == Aggregation::kMax ? -INFINITY : 0;
    for (int q = 0; q < heads; ++q) {
      const float score = scores[q * stride + page];
      if (aggregation == Aggregation::kSoftmaxSum) value += __expf(score - lse[q]);
      if (aggregation == Aggregation::kMax) value = fmaxf(value, score);
      if (aggregation == Aggregation::kMean) value += score;
    }
    if (aggregation == Aggregation::kSoftmaxSum) return value >= 0 && value < INFINITY ? value : 0;
    if (aggregation == Aggregation::kMean) value /= static_cast<float>(heads);
    return value != value ? -FLT_MAX : value;
  }
};

// Log of the softmax sums over [0, pages), by query; ends with a barrier.
__device__ __forceinline__ void SumPageSoftmaxes(const float* scores, int64_t stride, int heads, uint32_t pages,
                                                 float2 (*parts)[kMaxUnitHeads], float* lse) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int q = 0; q < heads; ++q) {
    float most = -INFINITY, sum = 0;
    for (uint32_t page = threadIdx.x; page < pages; page += kRankThreads) {
      const float score = scores[q * stride + page];
      if (score > most) {
        sum = sum * __expf(most - score) + 1;
        most = score;
      } else if (score > -INFINITY) {
        sum += __expf(score - most);
      }
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      const float other_most = __shfl_xor_sync(~0u, most, step), other_sum = __shfl_xor_sync(~0u, sum, step);
      const float both = fmaxf(most, other_most);
      if (both > -INFINITY) sum = sum * __expf(most - both) + other_sum * __expf(other_most - both);
      most = both;
    }
    if (lane == 0) parts[warp][q] = {most, sum};
  }
  __syncthreads();
  if (threadIdx.x < heads) {
    float most = -INFINITY, sum = 0;
    for (int w = 0; w < kRankWarps; ++w) most = fmaxf(most, parts[w][threadIdx.x].x);
    for (int w = 0; w < kRankWarps && most > -INFINITY; ++w) {
      sum += parts[w][threadIdx.x].y * __expf(parts[w][threadIdx.x].x - most);
    }
    lse[threadIdx.x] = most > -INFINITY && most < INFINITY ? most + __logf(sum) : INFINITY;
  }
  __syncthreads();
}

// One block to a selection: writes it, or for the mass policy the order in which its units are read.
__global__ void __launch_bounds__(kRankThreads)
    RankUnits(const __grid_constant__ UnitSelectParams p, const float* scores, int64_t stride, UnitScratch scratch,
              uint32_t capacity) {
  extern __shared__ __align__(16) uint8_t dynamic[];
  __shared__ float2 parts[kRankWarps][kMaxUnitHeads];
  __shared__ float lse[kMaxUnitHeads];
  __shared__ uint32_t warp_sums[kRankWarps];
  __shared__ uint32_t budget_units, budget_rows;
  __shared__ uint32_t bitmap[kMaxPageUnits / 32];
  auto* ranks = reinterpret_cast<uint64_t*>(dynamic);  // [capacity], a power of two
  WaitForInputs();
  LetDependentsStart();
  const uint32_t out = blockIdx.x, index = out / p.lists_per_group;
  if (KeepsSelection(p, index)) return;
  const SelectionList list = p.list.lists[index];
  if (list.last <= list.first || list.budget == 0) {
    if (threadIdx.x == 0) {
      p.counts[static_cast<size_t>(out) * p.count_stride] = 0;
      if (scratch.stop != nullptr) scratch.stop[out] = scratch.in_budget[out] = 0;
    }
    return;
  }
  const uint32_t page_rows = p.list.pages.page_tokens, per_unit = p.unit_tokens / page_rows;
  const uint32_t pages = list.num_keys / page_rows, page_end = list.last / page_rows;
  const bool each = p.lists_per_group > 1;
  const PageImportance importance{
      .scores = scores + (static_cast<int64_t>(index) * p.list.group + (each ? out % p.lists_per_group : 0)) * stride,
      .stride = stride,
      .heads = each ? 1 : p.list.group,
      .aggregation = p.list.aggregation,
      .lse = lse};
  if (p.list.aggregation == Aggregation::kSoftmaxSum) {
    SumPageSoftmaxes(importance.scores, stride, importance.heads, pages, parts, lse);
  }
  const UnitRows range{p.unit_tokens, list.first, list.last};
  const uint32_t begin = list.first / p.unit_tokens, end = (list.last + p.unit_tokens - 1) / p.unit_tokens;
  const uint32_t units = end - begin;
  uint32_t size = 2;
  while (size < units) size *= 2;
  for (uint32_t i = threadIdx.x; i < size; i += kRankThreads) {
    uint64_t rank = 0;
    if (i < units) {
      const uint32_t unit = begin + i, first_page = unit * per_unit;
      float best = first_page < page_end ? -INFINITY : FLT_MAX;
      for (uint32_t page = first_page; page < min(first_page + per_unit, page_end); ++page) {
        best = fmaxf(best, importance.Of(page));
      }
      rank = uint64_t{KeyOfImportance(best)} << 32 | ~unit;
    }
    ranks[i] = rank;
  }
  __syncthreads();
  for (uint32_t run = 2; run <= size; run *= 2) {
    for (uint32_t step = run / 2; step > 0; step /= 2) {
      for (uint32_t pair = threadIdx.x; pair < size / 2; pair += kRankThreads) {
        const uint32_t low = pair / step * 2 * step + pair % step, high = low + step;
        const uint64_t a = ranks[low], b = ranks[high];
        if ((a < b) == ((low & run) == 0)) {
          ranks[low] = b;
          ranks[high] = a;
        }
      }
      __syncthreads();
    }
  }
  // The fewest, in this order, that hold the budget.
  if (threadIdx.x == 0) {
    budget_units = units;
    budget_rows = list.last - list.first;
  }
  uint32_t total = 0;
  for (uint32_t base = 0; base < units && total < list.budget; base += kRankThreads) {
    const uint32_t i = base + threadIdx.x, rows = i < units ? range.Rows(~static_cast<uint32_t>(ranks[i])) : 0;
    const BlockSums sums = SumOverBlock(rows, warp_sums);
    const uint32_t before = total + sums.before;
    if (rows > 0 && before < list.budget && before + rows >= list.budget) {
      budget_units = i + 1;
      budget_rows = before + rows;
    }
    total += sums.all;
  }
  __syncthreads();
  const uint32_t count = budget_units, excess = budget_rows > list.budget ? budget_rows - list.budget : 0;
  if (p.list.min_mass > 0) {
    uint32_t* order = scratch.order + static_cast<size_t>(out) * scratch.max_units;
    for (uint32_t i = threadIdx.x; i < count; i += kRankThreads) order[i] = ~static_cast<uint32_t>(ranks[i]);
    if (threadIdx.x == 0) {
      scratch.in_budget[out] = count;
      scratch.stop[out] = TakesByMass(p, list) ? kNotStopped : count;
      scratch.arrivals[out] = 0;
    }
    return;
  }
  EmitUnits(p, range, ranks, nullptr, count, excess, out, bitmap, warp_sums);
}

}  // namespace winnow::device
