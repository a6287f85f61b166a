#include "common/base/kv_layout.h"
#include "kernels/device/params/predict.h"
#include "kernels/device/params/row_digest.h"

namespace winnow::device {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kSplits = 32;  // blocks of a list

// A lane's part of a row: words 2 * lane and 2 * lane + 1 of each 512 bytes.
class RowReader {
 public:
  __device__ explicit RowReader(size_t row_bytes)
      : vectors_(static_cast<int>(row_bytes / 16)), lane_(threadIdx.x % 32) {
    for (int part = 0; part < 2; ++part) {
      for (int i = 0; i < 2; ++i) factors_[2 * part + i] = DigestFactor(64 * part + 2 * lane_ + i);
    }
  }
  __device__ uint64_t Read(const uint8_t* row, uint64_t key) const {
    uint64_t sum = 0;
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const int vector = 32 * part + lane_;
      if (vector >= vectors_) break;
      const ulonglong2 words = __ldcg(reinterpret_cast<const ulonglong2*>(row) + vector);
      sum += words.x * factors_[2 * part] + words.y * factors_[2 * part + 1];
    }
    return sum * DigestFactor(~key);
  }

 private:
  const int vectors_, lane_;
  uint64_t factors_[4];
};

// Adds up what the list's blocks have found; the last one tells it.
__device__ void Finish(const DigestPlan& p, uint32_t index, uint64_t sum, uint32_t recent_rows, RowDigest* digests) {
  __shared__ uint64_t warp_sums[kWarps];
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int warp = 1; warp < kWarps; ++warp) sum += warp_sums[warp];
  auto* const total = reinterpret_cast<unsigned long long*>(p.sums + index);
  atomicAdd(total, sum);
  __threadfence();
  if (atomicInc(p.arrivals + index, kSplits - 1) != kSplits - 1) return;
  __threadfence();
  digests[index] = {atomicExch(total, 0ull), *p.plan, recent_rows};
}

__global__ void __launch_bounds__(kThreads) StoredDigest(const StoredDigestParams p) {
  const uint32_t index = blockIdx.y, plan = *p.plan.plan, position = p.plan.positions[index / p.plan.num_kv_heads];
  if (position == kNoPosition) return;
  const int64_t entry = plan % p.plan.num_layers * p.plan.layer_lists + index;
  const SelectionList list = p.lists[entry];
  const ResidencyList residency = p.residency[entry];
  const RowReader reader(p.plan.row_bytes);
  const auto read = [&](uint32_t row, uint64_t key) {
    const uint64_t block = p.blocks[list.first_block + row / kBlockTokens];
    const uint64_t at = block * kBlockTokens + row % kBlockTokens;
    return reader.Read(static_cast<const uint8_t*>(p.row_pool) + at * p.plan.row_bytes, key);
  };
  const uint32_t warp = blockIdx.x * kWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
  constexpr uint32_t kStride = kSplits * kWarps;
  uint64_t sum = 0;
  for (uint32_t first = warp * 32; first < residency.pool_slots; first += kStride * 32) {
    const uint32_t slot = first + lane;
    const bool is_selected = slot < residency.pool_slots && residency.last_plan[slot] == plan;
    const uint32_t row = is_selected ? residency.position_of[slot] : 0;
    for (uint32_t left = __ballot_sync(~0u, is_selected); left != 0; left &= left - 1) {
      const int from = __ffs(static_cast<int>(left)) - 1;
      sum += read(__shfl_sync(~0u, row, from), first + from);
    }
  }
  const uint32_t sinks = min(list.first, position + 1);
  for (uint32_t row = warp; row < sinks; row += kStride) sum += read(row, kSinkKey + row);
  for (uint32_t row = list.last + warp; row <= position; row += kStride) sum += read(row, kRecentKey + row);
  Finish(p.plan, index, sum, position + 1 - list.last, p.digests + plan % 2 * p.odd_digests);
}

__global__ void __launch_bounds__(kThreads) AttendedDigest(const AttendedDigestParams p) {
  const uint32_t index = blockIdx.y, plan = *p.plan.plan, position = p.plan.positions[index / p.plan.num_kv_heads];
  if (position == kNoPosition) return;
  const AttentionList list = p.lists[plan % p.plan.num_layers * p.plan.layer_lists + index];
  const RowReader reader(p.plan.row_bytes);
  const auto read = [&](uint32_t local, uint64_t key) {
    const uint64_t page = p.pages[list.first_page + local / kSlotPageTokens];
    const uint64_t slot = page * kSlotPageTokens + local % kSlotPageTokens;
    return reader.Read(static_cast<const uint8_t*>(p.slot_pool) + slot * p.plan.row_bytes, key);
  };
  const uint32_t warp = blockIdx.x * kWarps + threadIdx.x / 32;
  constexpr uint32_t kStride = kSplits * kWarps;
  uint64_t sum = 0;
#pragma unroll 4
  for (uint32_t i = warp; i < list.selected_count; i += kStride) {
    const uint32_t pool_index = p.selected[list.selected_first + i];
    sum += read(list.pool_base + pool_index, pool_index);
  }
  for (uint32_t i = warp; i < list.sinks; i += kStride) sum += read(i, kSinkKey + i);
  for (uint32_t i = warp; i < list.recent_count; i += kStride) {
    const uint32_t row = list.recent_begin + i;
    sum += read(list.ring_base + row % list.ring_tokens, kRecentKey + row);
  }
  Finish(p.plan, index, sum, list.recent_count, p.digests);
}

void LaunchStored(Stream stream, const StoredDigestParams& p) {
  const dim3 grid(kSplits, static_cast<unsigned>(p.plan.num_rows * p.plan.num_kv_heads));
  StoredDigest<<<grid, kThreads, 0, stream>>>(p);
}

void LaunchAttended(Stream stream, const AttendedDigestParams& p) {
  const dim3 grid(kSplits, static_cast<unsigned>(p.plan.num_rows * p.plan.num_kv_heads));
  AttendedDigest<<<grid, kThreads, 0, stream>>>(p);
}

}  // namespace

const DigestKernels kDigestKernels = {.stored_digest = LaunchStored, .attended_digest = LaunchAttended};

}  // namespace winnow::device
