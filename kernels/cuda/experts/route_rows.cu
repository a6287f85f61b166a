#include <algorithm>

#include "common/base/check.h"
#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/device/row_math.cuh"
#include "kernels/cuda/experts/route_rows.h"
#include "kernels/device/params/predict.h"

// Dependents start behind the waiting here and in router_logits.cu: sooner the many blocks of the experts' products
// would take places on multiprocessors while the products of attention still run.
//
// Logits; then the choice, a warp to a row; then the pairs sorted by expert, which is a launch of its own for many
// rows.
namespace winnow::device {
namespace {

constexpr int kChooseWarps = 32, kChooseThreads = 32 * kChooseWarps;
constexpr int kOneBlockRows = 64;  // which one block sorts

// The choice of some rows: pairs_per_row() experts of each, and their shares. In shared memory where one block does
// all, else where RoutedRows has it.
struct Choice {
  uint32_t* experts;
  float* shares;
};

// Larger for larger numbers; all bits of a NaN's are 0.
__device__ uint32_t KeyOf(float x) {
  const uint32_t bits = __float_as_uint(x);
  return x != x ? 0 : (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

__device__ float OfKey(uint32_t key) {
  return __uint_as_float((key & 0x80000000u) != 0 ? key ^ 0x80000000u : ~key);
}

// Of the experts that each lane looks at, those of the best groups as bits; ties to the lower group. By one warp.
template <int kLaneExperts>
__device__ uint32_t InBestGroups(const ExpertMatrices& of, const uint32_t (&keys)[kLaneExperts]) {
  constexpr int kLaneGroups = kMaxExpertGroups / 32;
  const uint32_t lane = threadIdx.x % 32, size = of.num_experts / of.groups;
  uint32_t scores[kLaneGroups] = {};  // of groups lane and lane + 32, as keys
  for (uint32_t group = 0; group < of.groups; ++group) {
    uint32_t best = 0, next = 0;  // the lane's two largest of this group
#pragma unroll
    for (int i = 0; i < kLaneExperts; ++i) {
      if (i * 32 + lane - group * size >= size) continue;
      next = max(next, min(best, keys[i]));
      best = max(best, keys[i]);
    }
    const uint32_t first = __reduce_max_sync(~0u, best);
    const uint32_t owner = __ffs(__ballot_sync(~0u, best == first)) - 1;
    const uint32_t second = __reduce_max_sync(~0u, lane == owner ? next : best);
    const float sum = size == 1 || of.group_scores == 1 ? OfKey(first) : OfKey(first) + OfKey(second);
#pragma unroll
    for (int i = 0; i < kLaneGroups; ++i) {
      if (i * 32 + lane == group) scores[i] = KeyOf(sum);
    }
  }
  uint64_t taken = 0;
  for (int n = 0; n < of.groups_per_token; ++n) {
    uint32_t best = 0, at_best = ~0u;
#pragma unroll
    for (int i = 0; i < kLaneGroups; ++i) {
      const uint32_t group = i * 32 + lane;
      const bool is_left = group < of.groups && (taken >> group & 1) == 0;
      if (is_left && (at_best == ~0u || scores[i] > best)) best = scores[i], at_best = group;
    }
    const uint32_t of_all = __reduce_max_sync(~0u, best);
    taken |= uint64_t{1} << __reduce_min_sync(~0u, best == of_all ? at_best : ~0u);
  }
  uint32_t in_best = 0;
#pragma unroll
  for (int i = 0; i < kLaneExperts; ++i) {
    const uint32_t expert = i * 32 + lane;
    if (expert < of.num_experts && (taken >> expert / size & 1) != 0) in_best |= 1u << i;
  }
  return in_best;
}

// By one warp, each lane of which looks at kLaneExperts experts; `to` is the row's.
template <int kLaneExperts>
__device__ void ChooseExperts(const RouteRowsParams& p, int row, const Choice& to) {
  const ExpertMatrices& of = p.experts;
  const uint32_t lane = threadIdx.x % 32, count = of.experts_per_token;
  const float* const logits = p.routed.logits + static_cast<int64_t>(row) * of.num_logits();
  float own[kLaneExperts];                // logits, or their sigmoids
  uint32_t keys[kLaneExperts], left = 0;  // of the lane's experts, which have not been chosen
#pragma unroll
  for (int i = 0; i < kLaneExperts; ++i) {
    const uint32_t expert = i * 32 + lane;
    own[i] = expert < of.num_experts ? __ldcg(logits + expert) : -INFINITY;
    if (of.sigmoid) own[i] = 1 / (1 + expf(-own[i]));
    const bool is_corrected = of.correction != nullptr && expert < of.num_experts;
    keys[i] = KeyOf(is_corrected ? own[i] + of.correction[expert] : own[i]);
    if (expert < of.num_experts) left |= 1u << i;
  }
  if (of.groups > 1) left = InBestGroups(of, keys);
  uint32_t chosen = ~0u;  // of lane i the i-th best
  float of_chosen = -INFINITY, largest = 0;
  for (uint32_t i = 0; i < count; ++i) {
    uint32_t best = 0, at_best = ~0u;
    float own_of_best = 0;
#pragma unroll
    for (int at = 0; at < kLaneExperts; ++at) {
      const bool is_better = (left >> at & 1) != 0 && (at_best == ~0u || keys[at] > best);
      if (is_better) best = keys[at], at_best = at, own_of_best = own[at];
    }
    const uint32_t of_all = __reduce_max_sync(~0u, best);
    const uint32_t expert = __reduce_min_sync(~0u, best == of_all && at_best != ~0u ? at_best * 32 + lane : ~0u);
    const float value = __shfl_sync(~0u, own_of_best, expert % 32);
    if (i == 0) largest = value;
    if (expert % 32 == lane) left &= ~(1u << expert / 32);
    if (i == lane) chosen = expert, of_chosen = value;
  }
  float total = 0;
#pragma unroll
  for (int i = 0; i < kLaneExperts; ++i) {
    if (i * 32 + lane < of.num_experts) total += expf(own[i] - largest);
  }
  total = WarpSum(total);
  const float share_of_chosen = of.sigmoid ? of_chosen : expf(of_chosen - largest) / total;
  const float probability = lane < count ? share_of_chosen : 0;
  uint32_t place = 0;  // among the chosen, by expert
  for (uint32_t i = 0; i < count; ++i) place += __shfl_sync(~0u, chosen, i) < chosen;
  const float sum = of.normalizes ? WarpSum(probability) : 1;
  if (lane < count) {
    to.experts[place] = chosen;
    to.shares[place] = of.scale * (probability / sum);
  }
  if (lane < of.num_shared) {
    const float share = of.shared_gate ? 1 / (1 + expf(-__ldcg(logits + of.num_experts))) : 1;
    to.experts[count + lane] = of.num_experts + lane;
    to.shares[count + lane] = share;
  }
}

// The place of pair i, which goes to that expert.
__device__ void Place(const RoutedRows& to, uint32_t i, uint32_t per_row, uint32_t expert, float share,
                      uint32_t* next) {
  if (expert == kNoPair) {
    to.places[i] = kNoPair;
    return;
  }
  const uint32_t pair = atomicAdd(&next[expert], 1u);
  to.rows[pair] = i / per_row;
  to.weights[pair] = share;
  to.places[i] = pair;
}

// From how many pairs experts have to where they lie: first, active, tiles, and `next`, the first of each again. One
// warp.
__device__ void ShareOutPairs(const RoutedRows& to, int num_all, const uint32_t* counts, uint32_t* next) {
  // A lane takes neighbouring experts; sums before it come from the lanes before.
  const int lane = threadIdx.x % 32, per_lane = (num_all + 31) / 32;
  const int begin = min(lane * per_lane, num_all), end = min(begin + per_lane, num_all);
  uint32_t sums[3] = {};  // pairs, experts that have some, tiles
  for (int e = begin; e < end; ++e) {
    sums[0] += counts[e];
    sums[1] += counts[e] > 0;
    sums[2] += (counts[e] + kExpertTileRows - 1) / kExpertTileRows;
  }
  uint32_t before[3], all[3];
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    before[i] = sums[i];
    for (int step = 1; step < 32; step *= 2) {
      const uint32_t other = __shfl_up_sync(~0u, before[i], step);
      if (lane >= step) before[i] += other;
    }
    all[i] = __shfl_sync(~0u, before[i], 31);
    before[i] -= sums[i];
  }
  for (int e = static_cast<int>(all[1]) + lane; e < num_all; e += 32) to.active[e] = {0, 0, 0};
  if (lane == 0) {
    to.first[num_all] = all[0];
    *to.num_active = all[1];
    *to.num_tiles = all[2];
    atomicAdd(reinterpret_cast<unsigned long long*>(to.touched), all[1]);  // nothing waits for it
  }
  for (int e = begin; e < end; ++e) {
    to.first[e] = next[e] = before[0];
    if (counts[e] > 0) to.active[before[1]++] = {static_cast<uint32_t>(e), before[0], counts[e]};
    for (uint32_t done = 0; done < counts[e]; done += kExpertTileRows) {
      to.tiles[before[2]++] = {static_cast<uint32_t>(e), before[0] + done};
    }
    before[0] += counts[e];
  }
}

// The choice of all rows by one block, which then sorts the pairs; or by several, which count them: then the last to
// end shares out the pairs' places, and PlaceKernel takes them.
template <int kLaneExperts>
__global__ void __launch_bounds__(kChooseThreads) ChooseKernel(const RouteRowsParams p) {
  __shared__ uint32_t counts[kMaxExperts], next[kMaxExperts];
  extern __shared__ uint32_t experts[];  // of all pairs, where one block has them all; behind them their shares
  __shared__ bool is_last;
  const int num_all = p.experts.num_all(), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int num_threads = blockDim.x, per_row = p.experts.pairs_per_row();
  const RoutedRows& to = p.routed;
  for (int i = threadIdx.x; i < num_all; i += num_threads) counts[i] = 0;
  const int rows = (p.num_rows + gridDim.x - 1) / gridDim.x, first_row = blockIdx.x * rows;
  const int end_row = min(first_row + rows, p.num_rows);
  // Positions have been there since before the logits, whose blocks let this one start behind their own waiting.
  const auto is_empty = [&](int row) {
    return p.positions != nullptr && row < end_row && __ldcg(p.positions + row) == kNoPosition;
  };
  bool empty = is_empty(first_row + warp);
  WaitForInputs();
  LetDependentsStart();
  const bool is_alone = gridDim.x == 1;
  float* const shares = reinterpret_cast<float*>(experts + p.num_rows * per_row);
  const Choice choice = is_alone ? Choice{experts, shares} : Choice{to.experts, to.shares};
  for (int row = first_row + warp; row < end_row; row += num_threads / 32, empty = is_empty(row)) {
    const Choice of_row = {choice.experts + row * per_row, choice.shares + row * per_row};
    if (empty) {
      for (int i = lane; i < per_row; i += 32) of_row.experts[i] = kNoPair;
    } else {
      ChooseExperts<kLaneExperts>(p, row, of_row);
    }
  }
  __syncthreads();
  const uint32_t first_pair = first_row * per_row, end_pair = max(end_row, first_row) * per_row;
  for (uint32_t i = first_pair + threadIdx.x; i < end_pair; i += num_threads) {
    const uint32_t expert = choice.experts[i];
    if (expert != kNoPair) atomicAdd(&counts[expert], 1u);
  }
  __syncthreads();
  if (is_alone) {
    if (warp == 0) ShareOutPairs(to, num_all, counts, next);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < end_pair; i += num_threads) {
      to.experts[i] = experts[i];
      to.shares[i] = shares[i];
      Place(to, i, per_row, experts[i], shares[i], next);
    }
    return;
  }
  for (int i = threadIdx.x; i < num_all; i += num_threads) {
    if (counts[i] > 0) atomicAdd(&to.counts[i], counts[i]);
  }
  __threadfence();
  __syncthreads();
  // Wraps around: the last one leaves 0 for the next launch.
  if (threadIdx.x == 0) is_last = atomicInc(to.arrivals, gridDim.x - 1) == gridDim.x - 1;
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  for (int i = threadIdx.x; i < num_all; i += num_threads) {
    counts[i] = __ldcg(to.counts + i);
    to.counts[i] = 0;
  }
  __syncthreads();
  if (warp == 0) ShareOutPairs(to, num_all, counts, to.next);
}

constexpr int kPlaceThreads = 256;
__global__ void __launch_bounds__(kPlaceThreads) PlaceKernel(const RouteRowsParams p) {
  WaitForInputs();
  LetDependentsStart();
  const uint32_t i = blockIdx.x * kPlaceThreads + threadIdx.x, per_row = p.experts.pairs_per_row();
  if (i >= p.num_rows * per_row) return;
  Place(p.routed, i, per_row, p.routed.experts[i], p.routed.shares[i], p.routed.next);
}

void LaunchChoice(Stream stream, const RouteRowsParams& params) {
  const unsigned blocks = params.num_rows <= kOneBlockRows ? 1 : DivideUp(params.num_rows, kChooseWarps);
  const int warps = std::clamp(params.num_rows, 4, kChooseWarps);  // a small block starts sooner
  // No more shared memory than needed: a multiprocessor that has to give it more first waits until it is empty.
  const size_t pairs = static_cast<size_t>(params.num_rows) * params.experts.pairs_per_row();
  const LaunchShape shape = {.grid = dim3(blocks),
                             .threads = static_cast<unsigned>(32 * warps),
                             .shared_bytes = blocks == 1 ? pairs * (sizeof(uint32_t) + sizeof(float)) : 0};
  auto* const kernel = params.experts.num_experts <= 128   ? ChooseKernel<4>
                       : params.experts.num_experts <= 256 ? ChooseKernel<8>
                                                           : ChooseKernel<kMaxExperts / 32>;
  LaunchDependent(kernel, shape, stream, params);
  if (blocks == 1) return;
  const unsigned place_blocks = DivideUp(params.num_rows * params.experts.pairs_per_row(), kPlaceThreads);
  LaunchDependent(PlaceKernel, {.grid = dim3(place_blocks), .threads = kPlaceThreads}, stream, params);
}

}  // namespace

void RouteRows(Stream stream, ExpertRows rows, const RouteRowsParams& params) {
  const ExpertMatrices& of = params.experts;
  WINNOW_CHECK(of.num_all() <= kMaxExperts && of.num_shared <= kMaxExpertsPerToken);
  WINNOW_CHECK(of.experts_per_token >= 1 && of.experts_per_token <= std::min(of.num_experts, kMaxExpertsPerToken));
  WINNOW_CHECK(of.sigmoid || of.correction == nullptr);
  WINNOW_CHECK(of.groups >= 1 && of.groups <= kMaxExpertGroups && of.num_experts % of.groups == 0);
  WINNOW_CHECK(of.groups_per_token >= 1 && of.groups_per_token <= of.groups &&
               of.experts_per_token <= of.num_experts / of.groups * of.groups_per_token);
  WINNOW_CHECK(of.hidden_size % 8 == 0 && params.num_rows >= 0 &&
               static_cast<uint32_t>(params.num_rows) <= params.routed.max_rows);
  if (params.num_rows == 0) return;
  RouterLogits(stream, rows, params);
  LaunchChoice(stream, params);
}

}  // namespace winnow::device
