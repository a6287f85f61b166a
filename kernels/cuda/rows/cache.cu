#include <algorithm>
#include <type_traits>

#include "common/base/check.h"
#include "kernels/cuda/rows/append.cuh"
#include "kernels/cuda/rows/assign_slots.cuh"
#include "kernels/cuda/rows/bound_groups.cuh"
#include "kernels/cuda/rows/bound_int8_rows.cuh"
#include "kernels/cuda/rows/flags.cuh"
#include "kernels/cuda/rows/gather_rows.cuh"
#include "kernels/cuda/rows/push_rows.cuh"
#include "kernels/device/params/cache.h"

namespace winnow::device {
namespace {

// Stores of the launches before this one are ordered before the flag: what a thread has seen is released with it.
__global__ void Raise(const RaiseParams p) {
  WaitForInputs();
  LetDependentsStart();
  StoreRelease(p.flag, *p.value);
}

__global__ void Wait(const WaitParams p) {
  WaitForInputs();
  WaitFor(p, *p.value);
}

__global__ void Ping(uint32_t* peer_flag, const WaitParams p, uint32_t rounds, bool first) {
  const uint32_t begin = *p.value;
  for (uint32_t round = 0; round < rounds; ++round) {
    if (first) StoreRelease(peer_flag, begin + round);
    if (!WaitFor(p, begin + round)) return;
    if (!first) StoreRelease(peer_flag, begin + round);
  }
}

template <typename Launch>
void WithHeadDim(int head_dim, const Launch& launch) {
  switch (head_dim) {
    case 64:
      return launch(std::integral_constant<int, 64>());
    case 96:
      return launch(std::integral_constant<int, 96>());
    case 128:
      return launch(std::integral_constant<int, 128>());
    case 256:
      return launch(std::integral_constant<int, 256>());
    default:
      WINNOW_CHECK(false);
  }
}

// A warp to each.
LaunchShape AppendShape(int tasks) {
  return {.grid = dim3((tasks + kAppendWarps - 1) / kAppendWarps), .threads = kAppendWarps * 32};
}

void LaunchBoundGroups(Stream stream, const AppendParams& p) {
  WINNOW_CHECK(p.bounds != nullptr && p.group_bounds != nullptr);
  if (p.num_lists == 0 || p.rows_per_list == 0) return;
  const LaunchShape shape = AppendShape(p.num_lists * CompletedGroups(p.rows_per_list, p.page_tokens));
  WithHeadDim(p.head_dim, [&](auto dim) { LaunchDependent(BoundGroups<dim>, shape, stream, p); });
}

void LaunchAppend(Stream stream, const AppendParams& p) {
  WINNOW_CHECK(p.row_scales == nullptr || (p.rows == nullptr && p.key_copy == nullptr && p.bounds != nullptr));
  if (p.num_lists == 0 || p.rows_per_list == 0) return;
  const LaunchShape shape = AppendShape(p.num_lists * AppendPages(p.rows_per_list, p.page_tokens));
  WithHeadDim(p.head_dim, [&](auto dim) {
    LaunchDependent(p.row_scales != nullptr ? BoundInt8Rows<dim> : Append<dim>, shape, stream, p);
  });
  if (p.group_bounds != nullptr && p.rows_per_list > 1) LaunchBoundGroups(stream, p);
}

template <int kThreads, int kTiles>
void LaunchAssignSlotsOf(Stream stream, const AssignSlotsParams& p) {
  const size_t shared_bytes = AssignSlotsSharedBytes(p);
  WINNOW_CHECK(p.max_positions > 0 && shared_bytes <= 220 * 1024);
  LaunchDependent(AssignSlots<kThreads, kTiles>,
                  {.grid = dim3(p.num_lists), .threads = kThreads, .shared_bytes = shared_bytes}, stream, p);
}

void LaunchAssignSlots(Stream stream, const AssignSlotsParams& p) {
  if (p.num_lists == 0) return;
  if (p.max_pool_slots > 8192) return LaunchAssignSlotsOf<1024, 0>(stream, p);
  if (p.max_pool_slots > 4096) return LaunchAssignSlotsOf<1024, 2>(stream, p);
  // Fewer threads take longer for a list, but two lists then share a multiprocessor.
  if (p.num_lists > DeviceAttribute(cudaDevAttrMultiProcessorCount)) return LaunchAssignSlotsOf<512, 2>(stream, p);
  LaunchAssignSlotsOf<1024, 1>(stream, p);
}

template <int kVectors>
void LaunchPushOf(Stream stream, const PushParams& p) {
  const size_t most_rows = static_cast<size_t>(p.num_lists) * p.max_budget;
  const size_t useful_ctas = (most_rows + kPushGroup * kPushWarps - 1) / (kPushGroup * kPushWarps);
  // One block a multiprocessor gets the most out of a link.
  const int most_ctas = p.max_ctas > 0 ? p.max_ctas : DeviceAttribute(cudaDevAttrMultiProcessorCount);
  const int ctas = static_cast<int>(std::clamp<size_t>(useful_ctas, 1, most_ctas));
  LaunchDependent(PushRows<kVectors>, {.grid = dim3(ctas), .threads = kPushThreads}, stream, p);
}

void LaunchPush(Stream stream, const PushParams& p) {
  WINNOW_CHECK(p.num_lists <= kMaxPushedLists && p.row_bytes % 16 == 0);
  if (p.num_lists == 0) return;
  switch (p.row_bytes) {
    case 256:
      return LaunchPushOf<16>(stream, p);
    case 512:
      return LaunchPushOf<32>(stream, p);
    case 1024:
      return LaunchPushOf<64>(stream, p);
    default:
      return LaunchPushOf<0>(stream, p);
  }
}

template <int kVectors, int kRows>
void LaunchGatherOf(Stream stream, const GatherParams& p, int num_lists) {
  constexpr uint32_t kCtaRows = kGatherWarps * kRows;
  LaunchDependent(GatherRows<kVectors, kRows>,
                  {.grid = dim3((p.max_count + kCtaRows - 1) / kCtaRows, num_lists), .threads = kGatherWarps * 32},
                  stream, p);
}

void LaunchGather(Stream stream, const void* row_pool, size_t row_bytes, const SelectionList* lists,
                  const uint32_t* blocks, const uint32_t* positions, const uint32_t* counts, int num_lists,
                  uint32_t max_count, void* out) {
  WINNOW_CHECK(num_lists <= 65535 && row_bytes % 16 == 0);
  if (num_lists == 0 || max_count == 0) return;
  const GatherParams p = {row_pool, static_cast<uint32_t>(row_bytes / 16), lists, blocks, positions, counts, max_count,
                          out};
  switch (row_bytes) {
    case 256:
      return LaunchGatherOf<16, 4>(stream, p, num_lists);
    case 512:
      return LaunchGatherOf<32, 2>(stream, p, num_lists);
    case 1024:
      return LaunchGatherOf<64, 1>(stream, p, num_lists);
    default:
      return LaunchGatherOf<0, 2>(stream, p, num_lists);
  }
}

void LaunchRaise(Stream stream, const RaiseParams& p) {
  LaunchDependent(Raise, {.grid = dim3(1), .threads = 1}, stream, p);
}

void LaunchWait(Stream stream, const WaitParams& p) {
  LaunchDependent(Wait, {.grid = dim3(1), .threads = 1}, stream, p);
}

void LaunchPing(Stream stream, uint32_t* peer_flag, const WaitParams& p, uint32_t rounds, bool first) {
  Ping<<<1, 1, 0, stream>>>(peer_flag, p, rounds, first);
}

}  // namespace

const CacheKernels kCacheKernels = {.append = LaunchAppend,
                                    .bound_groups = LaunchBoundGroups,
                                    .assign_slots = LaunchAssignSlots,
                                    .push = LaunchPush,
                                    .raise = LaunchRaise,
                                    .wait = LaunchWait,
                                    .ping = LaunchPing,
                                    .gather = LaunchGather};

}  // namespace winnow::device
