#include <algorithm>

#include "common/base/kv_layout.h"
#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/rows/flags.cuh"
#include "kernels/cuda/rows/remote_flags.cuh"
#include "kernels/device/params/step.h"

namespace winnow::device {
namespace {

constexpr uint32_t kNone = ~0u;
constexpr int kThreads = 256;

// Start of the recent window (RecentStart in common/selection/selection_spec.h).
__device__ uint32_t RecentStart(uint32_t position, uint32_t recent_tokens, uint32_t sinks) {
  const uint32_t length = position + 1;
  const uint32_t start = length > recent_tokens ? (length - recent_tokens) / kBlockTokens * kBlockTokens : 0;
  return max(start, sinks);
}

__device__ uint32_t SlotOf(const AttentionList& list, const uint32_t* pages, uint32_t local) {
  return pages[list.first_page + local / kSlotPageTokens] * kSlotPageTokens + local % kSlotPageTokens;
}

// Only this block writes what all blocks of the next kernel read.
__global__ void AdvanceRows(const BeginStepParams p) {
  WaitForInputs();
  const int row = threadIdx.x;
  if (row < p.num_rows) {
    const uint32_t position = p.next_positions[row];
    p.positions[row] = position;
    if (position != kNoPosition) {
      p.next_positions[row] = position + 1;
      if (p.sample_rows != nullptr) ++p.sample_rows[row].token_index;
    }
    if (p.token_log != nullptr) p.token_log[(*p.plan + 1) % p.log_steps * p.max_rows + row] = p.token_ids[row];
  }
  __syncthreads();
  if (row == 0) ++*p.plan;
}

__global__ void AdvanceLists(const BeginStepParams p) {
  WaitForInputs();
  const int item = blockIdx.x * blockDim.x + threadIdx.x;
  if (item >= p.num_layers * p.num_rows * p.num_kv_heads) return;
  const int head = item % p.num_kv_heads, row = item / p.num_kv_heads % p.num_rows;
  const int layer = item / p.num_kv_heads / p.num_rows;
  const int64_t index = (static_cast<int64_t>(layer) * p.max_rows + row) * p.num_kv_heads + head;
  AttentionList* lists = p.lists + index * p.lists_per_kv_head;
  AttentionList& list = lists[0];
  const uint32_t position = p.positions[row];
  if (position == kNoPosition) {
    for (int i = 0; i < p.lists_per_kv_head; ++i) {
      lists[i].sinks = lists[i].selected_count = lists[i].recent_count = 0;
    }
    if (p.kv_destinations != nullptr) p.kv_destinations[index] = nullptr;
    if (p.kv_slots != nullptr) p.kv_slots[index] = kNone;
    return;
  }
  const uint32_t layer_window = p.layer_windows == nullptr ? 0 : p.layer_windows[layer];
  if (layer_window > 0) {
    const uint32_t begin = position + 1 > layer_window ? position + 1 - layer_window : 0;
    for (int i = 0; i < p.lists_per_kv_head; ++i) {
      lists[i].sinks = lists[i].selected_count = 0;
      lists[i].recent_begin = begin;
      lists[i].recent_count = position + 1 - begin;
    }
  } else if (p.window == RecentWindow::kSliding) {
    const RowWindow window = p.windows[row];
    uint32_t anchor = position;
    if (window.reuse_interval > 1 && position > window.prompt_tokens) {
      anchor = max(position - position % window.reuse_interval, window.prompt_tokens);
    }
    const uint32_t begin = RecentStart(anchor, window.recent_tokens, window.sinks);
    for (int i = 0; i < p.lists_per_kv_head; ++i) {
      lists[i].sinks = min(window.sinks, position + 1);
      lists[i].recent_begin = begin;
      lists[i].recent_count = position + 1 > begin ? position + 1 - begin : 0;
    }
  } else {
    for (int i = 0; i < p.lists_per_kv_head; ++i) lists[i].recent_count = position + 1 - lists[i].recent_begin;
  }
  const uint32_t slot = SlotOf(list, p.pages, list.ring_base + position % list.ring_tokens);
  if (p.kv_destinations != nullptr) {
    p.kv_destinations[index] = static_cast<char*>(p.slot_pool) + slot * static_cast<int64_t>(p.row_bytes);
  }
  if (p.kv_slots != nullptr) p.kv_slots[index] = slot;
}

__device__ void CopyWords(const uint4* from, uint4* to, int64_t words, int64_t first, int64_t stride) {
  for (int64_t i = first; i < words; i += stride) to[i] = from[i];
}

// The last block to have stored its part raises the flag: each block's stores are ordered before its arrival, and the
// flag after the last arrival.
__global__ void Publish(const PublishParams p) {
  WaitForInputs();
  LetDependentsStart();
  const int64_t words = static_cast<int64_t>(p.row_bytes / sizeof(uint4));
  const int64_t stride = gridDim.x * static_cast<int64_t>(blockDim.x);
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < words * p.num_rows; i += stride) {
    const int64_t row = i / words, word = i % words;
    reinterpret_cast<uint4*>(static_cast<char*>(p.to) + row * p.to_stride)[word] =
        reinterpret_cast<const uint4*>(static_cast<const char*>(p.from) + row * p.from_stride)[word];
  }
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (atomicAdd(p.arrivals, 1) != gridDim.x - 1) return;
  *p.arrivals = 0;
  __threadfence_system();
  *reinterpret_cast<volatile uint32_t*>(p.flag) = *p.value;
}

__global__ void SendRows(const SendRowsParams p) {
  WaitForInputs();
  LetDependentsStart();
  SendRowsPart(p, blockIdx.x * blockDim.x + threadIdx.x, gridDim.x * blockDim.x);
  __syncthreads();
  if (threadIdx.x == 0) EndSendRows(p, gridDim.x);
}

// Nothing else comes to hold multiprocessors while this waits: what it waits for may need them.
__global__ void SignalAndWait(const RemoteFlagsParams p) {
  WaitForInputs();
  const RemoteFlags flags(p);
  flags.Raise();
  flags.Await();
}

__global__ void BeginChunk(const BeginChunkParams p) {
  const int item = blockIdx.x * blockDim.x + threadIdx.x;
  if (item >= p.num_rows * p.num_kv_heads) return;
  const int row = item / p.num_kv_heads, head = item % p.num_kv_heads;
  const uint32_t position = p.first_position + row;
  if (head == 0) p.positions[row] = position;
  p.kv_destinations[item] = static_cast<char*>(p.rows) + (head * p.head_stride + position) * p.row_bytes;
}

// A warp per row of a list: blockIdx.y is the list.
__global__ void FillSlots(const FillSlotsParams p) {
  const int head = blockIdx.y % p.num_kv_heads, layer = blockIdx.y / p.num_kv_heads;
  const AttentionList list = p.lists[layer * p.lists_layer_stride + head];
  const uint32_t count = list.sinks + list.selected_count + p.recent_count;
  const uint32_t lane = threadIdx.x % 32, warps = gridDim.x * (blockDim.x / 32);
  const int64_t words = p.row_bytes / sizeof(uint4);
  for (uint32_t j = (blockIdx.x * blockDim.x + threadIdx.x) / 32; j < count; j += warps) {
    uint32_t position = j, local = j;
    if (j >= list.sinks + list.selected_count) {
      position = p.recent_begin + j - list.sinks - list.selected_count;
      local = list.ring_base + position % list.ring_tokens;
    } else if (j >= list.sinks) {
      position = p.selected_positions[list.selected_first + j - list.sinks];
      local = list.pool_base + p.selected[list.selected_first + j - list.sinks];
    }
    const auto* from = static_cast<const uint4*>(p.rows) + (blockIdx.y * p.list_stride + position) * words;
    auto* to = static_cast<uint4*>(p.slot_pool) + SlotOf(list, p.pages, local) * words;
    CopyWords(from, to, words, lane, 32);
  }
}

__global__ void ScatterRows(const ScatterRowsParams p) {
  WaitForInputs();
  LetDependentsStart();
  const int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (row >= p.num_rows || p.slots[row] == kNone) return;
  const int64_t words = p.row_bytes / sizeof(uint4), slot = p.slots[row];
  CopyWords(static_cast<const uint4*>(p.rows) + row * words, static_cast<uint4*>(p.slot_pool) + slot * words, words,
            lane, 32);
  if (p.scales != nullptr && lane < 2) p.slot_scales[2 * slot + lane] = p.scales[2 * row + lane];
}

int Blocks(int64_t threads) {
  return static_cast<int>((threads + kThreads - 1) / kThreads);
}

void LaunchBeginStep(Stream stream, const BeginStepParams& p) {
  LaunchDependent(AdvanceRows, {.grid = dim3(1), .threads = 64}, stream, p);
  const int64_t lists = static_cast<int64_t>(p.num_layers) * p.num_rows * p.num_kv_heads;
  LaunchDependent(AdvanceLists, {.grid = dim3(Blocks(lists)), .threads = kThreads}, stream, p);
}

void LaunchPublish(Stream stream, const PublishParams& p) {
  // A few blocks: a residual is at most a megabyte, and the step's own kernels run beside.
  const int blocks = std::clamp(Blocks(p.num_rows * static_cast<int64_t>(p.row_bytes / sizeof(uint4))), 1, 16);
  LaunchDependent(Publish, {.grid = dim3(blocks), .threads = kThreads}, stream, p);
}

void LaunchSendRows(Stream stream, const SendRowsParams& p) {
  const int blocks = std::clamp(Blocks(p.num_rows * static_cast<int64_t>(p.row_bytes / sizeof(uint4))), 1, 16);
  LaunchDependent(SendRows, {.grid = dim3(blocks), .threads = kThreads}, stream, p);
}

void LaunchSignalAndWait(Stream stream, const RemoteFlagsParams& p) {
  LaunchDependent(SignalAndWait, {.grid = dim3(1), .threads = 32}, stream, p);
}

void LaunchBeginChunk(Stream stream, const BeginChunkParams& p) {
  BeginChunk<<<Blocks(static_cast<int64_t>(p.num_rows) * p.num_kv_heads), kThreads, 0, stream>>>(p);
}

void LaunchFillSlots(Stream stream, const FillSlotsParams& p) {
  if (p.max_count == 0) return;
  const dim3 grid(std::min(Blocks(p.max_count * int64_t{32}), 64), p.num_layers * p.num_kv_heads);
  FillSlots<<<grid, kThreads, 0, stream>>>(p);
}

void LaunchScatterRows(Stream stream, const ScatterRowsParams& p) {
  LaunchDependent(ScatterRows, {.grid = dim3(Blocks(p.num_rows * int64_t{32})), .threads = kThreads}, stream, p);
}

}  // namespace

const StepKernels kStepKernels = {.begin_step = LaunchBeginStep,
                                  .publish = LaunchPublish,
                                  .send_rows = LaunchSendRows,
                                  .signal_and_wait = LaunchSignalAndWait,
                                  .begin_chunk = LaunchBeginChunk,
                                  .fill_slots = LaunchFillSlots,
                                  .scatter_rows = LaunchScatterRows};

}  // namespace winnow::device
