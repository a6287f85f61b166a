#include <algorithm>

#include "common/base/check.h"
#include "kernels/cuda/append.cuh"
#include "kernels/cuda/cache.h"
#include "kernels/cuda/diff.cuh"
#include "kernels/cuda/flags.cuh"
#include "kernels/cuda/move_rows.cuh"

namespace winnow::cuda {
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

void LaunchAppend(Stream stream, const AppendParams& p) {
  if (p.num_lists == 0 || p.rows_per_list == 0) return;
  const int tasks = p.num_lists * AppendPages(p.rows_per_list, p.page_tokens);
  const LaunchShape shape{.grid = dim3((tasks + kAppendWarps - 1) / kAppendWarps), .threads = kAppendWarps * 32};
  switch (p.head_dim) {
    case 64:
      return LaunchDependent(Append<64>, shape, stream, p);
    case 96:
      return LaunchDependent(Append<96>, shape, stream, p);
    case 128:
      return LaunchDependent(Append<128>, shape, stream, p);
    case 256:
      return LaunchDependent(Append<256>, shape, stream, p);
    default:
      WINNOW_CHECK(false);
  }
}

template <int kThreads, int kTiles>
void LaunchDiffOf(Stream stream, const DiffParams& p) {
  const size_t shared_bytes = DiffSharedBytes(p);
  if (shared_bytes > 40 * 1024) {
    cudaFuncSetAttribute(Diff<kThreads, kTiles>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         static_cast<int>(shared_bytes));
  }
  LaunchDependent(Diff<kThreads, kTiles>,
                  {.grid = dim3(p.num_lists), .threads = kThreads, .shared_bytes = shared_bytes}, stream, p);
}

void LaunchDiff(Stream stream, const DiffParams& p) {
  if (p.num_lists == 0) return;
  if (p.max_pool_slots > 8192) return LaunchDiffOf<1024, 0>(stream, p);
  if (p.max_pool_slots > 4096) return LaunchDiffOf<1024, 2>(stream, p);
  // Fewer threads take longer for a list, but two lists then share a multiprocessor.
  if (p.num_lists > DeviceAttribute(cudaDevAttrMultiProcessorCount)) return LaunchDiffOf<512, 2>(stream, p);
  LaunchDiffOf<1024, 1>(stream, p);
}

template <bool kGather, int kVectors>
void LaunchMoveOf(Stream stream, const PushParams& p, const GatherOut& out) {
  // Two blocks a multiprocessor get the most out of the memory, one the most out of a link; more make rows wait longer.
  const int most_ctas = DeviceAttribute(cudaDevAttrMultiProcessorCount) * (kGather ? 2 : 1);
  const size_t most_rows = static_cast<size_t>(p.num_lists) * p.max_budget;
  const size_t useful_ctas = (most_rows + kMoveGroup * kMoveWarps - 1) / (kMoveGroup * kMoveWarps);
  const int ctas = static_cast<int>(std::clamp<size_t>(useful_ctas, 1, p.max_ctas > 0 ? p.max_ctas : most_ctas));
  LaunchDependent(MoveRows<kGather, kVectors>, {.grid = dim3(ctas), .threads = kMoveThreads}, stream, p, out);
}

template <bool kGather>
void LaunchMove(Stream stream, const PushParams& p, const GatherOut& out) {
  WINNOW_CHECK(p.num_lists <= kMaxMovedLists && p.row_bytes % 16 == 0);
  if (p.num_lists == 0) return;
  switch (p.row_bytes) {
    case 256:
      return LaunchMoveOf<kGather, 16>(stream, p, out);
    case 512:
      return LaunchMoveOf<kGather, 32>(stream, p, out);
    case 1024:
      return LaunchMoveOf<kGather, 64>(stream, p, out);
    default:
      return LaunchMoveOf<kGather, 0>(stream, p, out);
  }
}

void LaunchPush(Stream stream, const PushParams& p) {
  LaunchMove<false>(stream, p, {});
}

void LaunchGather(Stream stream, const void* row_pool, size_t row_bytes, const SelectionList* lists,
                  const uint32_t* blocks, const uint32_t* positions, const uint32_t* counts, int num_lists,
                  uint32_t max_count, void* out) {
  PushParams p;
  p.lists = lists;
  p.blocks = blocks;
  p.row_pool = row_pool;
  p.row_bytes = row_bytes;
  p.missing = positions;
  p.missing_counts = counts;
  p.num_lists = num_lists;
  p.max_budget = max_count;
  LaunchMove<true>(stream, p, {static_cast<uint8_t*>(out)});
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
                                    .diff = LaunchDiff,
                                    .push = LaunchPush,
                                    .raise = LaunchRaise,
                                    .wait = LaunchWait,
                                    .ping = LaunchPing,
                                    .gather = LaunchGather};

}  // namespace winnow::cuda
