#include <algorithm>
#include <bit>

#include "common/base/check.h"
#include "kernels/cuda/select/cuboid.cuh"
#include "kernels/cuda/select/mass_of_units.cuh"
#include "kernels/cuda/select/rank_units.cuh"
#include "kernels/device/arena.h"
#include "kernels/device/params/page_units.h"
#include "kernels/device/params/predict.h"

namespace winnow::device {
namespace {

constexpr int kThreads = 256;
constexpr uint32_t kFirstRoundRows = 1024;

unsigned Blocks(int64_t tasks, int64_t per_block) {
  return static_cast<unsigned>((tasks + per_block - 1) / per_block);
}

__global__ void __launch_bounds__(kThreads) HoldLists(const HoldListsParams p) {
  WaitForInputs();
  LetDependentsStart();
  const int item = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (item >= p.num_layers * p.num_rows * p.num_kv_heads) return;
  const int head = item % p.num_kv_heads, row = item / p.num_kv_heads % p.num_rows;
  const int layer = item / p.num_kv_heads / p.num_rows;
  SelectionList& list = p.lists[(static_cast<int64_t>(layer) * p.max_rows + row) * p.num_kv_heads + head];
  const uint32_t position = p.positions[row];
  const bool keeps =
      p.reuse_interval > 1 && position != ~0u && AnchorOf(position, p.prompt_tokens[row], p.reuse_interval) != position;
  if (keeps || list.budget == 0) list.num_keys = 0;
}

__global__ void __launch_bounds__(kThreads) TellCounts(const TellCountsParams p) {
  WaitForInputs();
  LetDependentsStart();
  const int list = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (list < p.num_lists * p.lists_per_group && p.list_positions[list / p.lists_per_group] != kNoPosition)
    p.to[static_cast<size_t>(list) * p.stride] = p.counts[list];
}

template <int kHeadDim>
void LaunchIndexCuboidsOf(Stream stream, const CuboidParams& p, const LaunchShape& shape) {
  LaunchDependent(p.row_scales != nullptr ? IndexCuboids<kHeadDim, true> : IndexCuboids<kHeadDim, false>, shape, stream,
                  p);
}

void LaunchIndexCuboids(Stream stream, const CuboidParams& p) {
  if (p.num_lists == 0 || p.rows_per_list == 0) return;
  const int64_t tasks = p.num_lists * int64_t{(p.rows_per_list + p.page_tokens - 1) / p.page_tokens};
  const LaunchShape shape{.grid = dim3(Blocks(tasks, kCuboidWarps)), .threads = kCuboidWarps * 32};
  switch (p.head_dim) {
    case 64:
      return LaunchIndexCuboidsOf<64>(stream, p, shape);
    case 96:
      return LaunchIndexCuboidsOf<96>(stream, p, shape);
    case 128:
      return LaunchIndexCuboidsOf<128>(stream, p, shape);
    case 256:
      return LaunchIndexCuboidsOf<256>(stream, p, shape);
    default:
      WINNOW_CHECK(false);
  }
}

// Units that the budget lasts for, at most: two are clipped.
uint32_t MostUnitsRead(const UnitSelectParams& p) {
  const uint32_t all = p.list.max_keys / p.unit_tokens + 1;
  return std::min(all, p.list.max_budget / p.unit_tokens + 3);
}

size_t Carve(const UnitSelectParams& p, void* region, UnitScratch* scratch) {
  if (p.list.min_mass <= 0) return 0;
  Arena arena(region);
  const size_t lists = p.list.num_lists;
  scratch->max_units = MostUnitsRead(p);
  scratch->order = arena.TakeArray<uint32_t>(lists * scratch->max_units);
  scratch->in_budget = arena.TakeArray<uint32_t>(lists);
  scratch->stop = arena.TakeArray<uint32_t>(lists);
  scratch->log_mass = arena.TakeArray<float>(lists * scratch->max_units * kMaxUnitHeads);
  scratch->held = arena.TakeArray<double>(lists * kMaxUnitHeads * 3);
  scratch->arrivals = arena.TakeArray<uint32_t>(lists);
  return arena.used_bytes();
}

size_t UnitScratchBytes(const UnitSelectParams& p) {
  UnitScratch scratch;
  return std::max<size_t>(256, Carve(p, nullptr, &scratch));
}

template <int kHeadDim>
void ReadInRounds(Stream stream, const UnitSelectParams& p, const UnitScratch& scratch) {
  const uint32_t most = scratch.max_units, lists = p.list.num_lists;
  for (uint32_t begin = 0, end = kFirstRoundRows / p.unit_tokens; begin < most; begin = end, end *= 2) {
    if (end + 8 > most) end = most;
    const unsigned blocks = Blocks(end - begin, kMassWarps) + (begin == 0 ? 1 : 0);
    LaunchDependent(ReadUnits<kHeadDim>,
                    {.grid = dim3(blocks, lists),
                     .threads = kMassWarps * 32,
                     .shared_bytes = (end - begin) * kMaxUnitHeads * sizeof(float)},
                    stream, p, scratch, begin, end);
  }
  LaunchDependent(EmitReadUnits, {.grid = dim3(lists), .threads = kRankThreads}, stream, p, scratch);
}

void LaunchSelectUnits(Stream stream, const UnitSelectParams& p, const float* scores, int64_t stride) {
  if (p.list.num_lists == 0) return;
  const uint32_t units = p.list.max_keys / p.unit_tokens + 1, capacity = std::bit_ceil(std::max(units, 2u));
  WINNOW_CHECK(units <= kMaxPageUnits && p.list.group <= kMaxUnitHeads);
  WINNOW_CHECK(p.list.min_mass <= 0 || (p.lists_per_group == 1 && p.list.keys.dtype == Dtype::kBf16));
  UnitScratch scratch;
  Carve(p, p.scratch, &scratch);
  LaunchDependent(RankUnits,
                  {.grid = dim3(static_cast<unsigned>(p.list.num_lists * p.lists_per_group)),
                   .threads = kRankThreads,
                   .shared_bytes = capacity * sizeof(uint64_t)},
                  stream, p, scores, stride, scratch, capacity);
  if (p.list.min_mass <= 0) return;
  switch (p.list.head_dim) {
    case 64:
      return ReadInRounds<64>(stream, p, scratch);
    case 96:
      return ReadInRounds<96>(stream, p, scratch);
    case 128:
      return ReadInRounds<128>(stream, p, scratch);
    case 256:
      return ReadInRounds<256>(stream, p, scratch);
    default:
      WINNOW_CHECK(false);
  }
}

void LaunchHoldLists(Stream stream, const HoldListsParams& p) {
  const int64_t lists = static_cast<int64_t>(p.num_layers) * p.num_rows * p.num_kv_heads;
  if (lists > 0) LaunchDependent(HoldLists, {.grid = dim3(Blocks(lists, kThreads)), .threads = kThreads}, stream, p);
}

void LaunchTellCounts(Stream stream, const TellCountsParams& p) {
  if (p.num_lists == 0) return;
  const int64_t lists = int64_t{p.num_lists} * p.lists_per_group;
  LaunchDependent(TellCounts, {.grid = dim3(Blocks(lists, kThreads)), .threads = kThreads}, stream, p);
}

}  // namespace

const PageUnitKernels kPageUnitKernels = {.index_cuboids = LaunchIndexCuboids,
                                          .unit_scratch_bytes = UnitScratchBytes,
                                          .select_units = LaunchSelectUnits,
                                          .hold_lists = LaunchHoldLists,
                                          .tell_counts = LaunchTellCounts};

}  // namespace winnow::device
