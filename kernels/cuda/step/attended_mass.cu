#include <algorithm>

#include "common/base/kv_layout.h"
#include "kernels/cuda/select/unit_scores.cuh"
#include "kernels/device/arena.h"
#include "kernels/device/params/attended_mass.h"
#include "kernels/device/params/predict.h"

namespace winnow::device {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr uint32_t kChunkKeys = 2048;  // of a block; sums are joined chunk by chunk, whatever the grid
constexpr int kMaxDim = 256;

// Sums of 2^(x - largest), x = score * log2(e): over all keys, and over those that are attended.
struct MassPart {
  float largest, all, attended;
};

__device__ MassPart Join(const MassPart& a, const MassPart& b) {
  const float largest = fmaxf(a.largest, b.largest);
  if (largest == -INFINITY) return {largest, a.all + b.all, a.attended + b.attended};
  const float of_a = Exp2(a.largest - largest), of_b = Exp2(b.largest - largest);
  return {largest, a.all * of_a + b.all * of_b, a.attended * of_a + b.attended * of_b};
}

__device__ MassPart JoinWarp(MassPart part) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const MassPart other = {__shfl_xor_sync(~0u, part.largest, step), __shfl_xor_sync(~0u, part.all, step),
                            __shfl_xor_sync(~0u, part.attended, step)};
    part = Join(part, other);
  }
  return part;
}

// Of another block: past the L1.
__device__ MassPart LoadPart(const MassPart* part) {
  return {__ldcg(&part->largest), __ldcg(&part->all), __ldcg(&part->attended)};
}

struct MassScratch {
  MassPart* parts;  // [num_lists, max_chunks, kMaxGroup]
  uint32_t max_chunks;

  static MassScratch At(const AttendedMassParams& p, void* region, size_t* bytes = nullptr) {
    Arena arena(region);
    const size_t lists = static_cast<size_t>(p.num_rows) * p.num_kv_heads;
    MassScratch scratch{};
    scratch.max_chunks = (p.max_keys + kChunkKeys - 1) / kChunkKeys;
    scratch.parts = arena.TakeArray<MassPart>(lists * scratch.max_chunks * kMaxGroup);
    if (bytes != nullptr) *bytes = arena.used_bytes();
    return scratch;
  }
};

template <UnitFormat kFormat>
struct Elements;
template <>
struct Elements<UnitFormat::kBf16> {
  static constexpr int kPerVector = 8;
  static __device__ void Expand(const uint4& v, float (&out)[8]) {
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      out[2 * i] = __uint_as_float(words[i] << 16);
      out[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
  }
};
template <>
struct Elements<UnitFormat::kF8> {
  static constexpr int kPerVector = 16;
  static __device__ void Expand(const uint4& v, float (&out)[16]) {
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const auto two = static_cast<__nv_fp8x2_storage_t>(words[i / 2] >> i % 2 * 16 & 0xffff);
      const float2 floats = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(two, __NV_E4M3)));
      out[2 * i] = floats.x;
      out[2 * i + 1] = floats.y;
    }
  }
};

template <>
struct Elements<UnitFormat::kI8> {
  static constexpr int kPerVector = 16;
  static __device__ void Expand(const uint4& v, float (&out)[16]) {
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 16; ++i) out[i] = static_cast<float>(static_cast<int8_t>(words[i / 4] >> i % 4 * 8));
  }
};

// Scores of one key with the group's queries, which lie in shared memory: all threads read the same element.
template <UnitFormat kFormat>
__device__ void ScoreKey(const uint8_t* key, const float* queries, int group, int head_dim,
                         float (&scores)[kMaxGroup]) {
  constexpr int kPerVector = Elements<kFormat>::kPerVector;
#pragma unroll
  for (int q = 0; q < kMaxGroup; ++q) scores[q] = 0;
#pragma unroll 4
  for (int d = 0; d < head_dim; d += kPerVector) {
    const uint4 vector = __ldg(reinterpret_cast<const uint4*>(key) + d / kPerVector);
    float elements[kPerVector];
    Elements<kFormat>::Expand(vector, elements);
#pragma unroll
    for (int q = 0; q < kMaxGroup; ++q) {
      if (q >= group) break;
      const auto* query = reinterpret_cast<const float4*>(queries + q * head_dim + d);
#pragma unroll
      for (int i = 0; i < kPerVector / 4; ++i) {
        const float4 four = query[i];
        scores[q] = fmaf(four.x, elements[4 * i], scores[q]);
        scores[q] = fmaf(four.y, elements[4 * i + 1], scores[q]);
        scores[q] = fmaf(four.z, elements[4 * i + 2], scores[q]);
        scores[q] = fmaf(four.w, elements[4 * i + 3], scores[q]);
      }
    }
  }
}

// A block to a chunk of a list, a thread to a key; the last block of a list to end joins what all have left.
template <UnitFormat kFormat>
__global__ void __launch_bounds__(kThreads) AttendedMass(const AttendedMassParams p, const MassScratch scratch) {
  __shared__ __align__(16) float queries[kMaxGroup * kMaxDim];
  __shared__ uint32_t is_selected[kChunkKeys / 32];
  __shared__ MassPart warp_parts[kWarps][kMaxGroup];
  __shared__ float masses[kMaxGroup];
  __shared__ bool is_last;
  const uint32_t index = blockIdx.y, row = index / p.num_kv_heads, chunk = blockIdx.x;
  const uint32_t position = p.positions[row], plan = *p.plan;
  const SelectionList list = p.lists[index];
  const bool measures = position != kNoPosition && list.last > list.first && list.last - list.first > list.budget &&
                        MeasuresAt(p, row, position);
  MeasuredMass* const peer =
      p.peer_masses == nullptr || position == kNoPosition ? nullptr : p.peer_masses + plan % 2 * p.peer_stride + index;
  const auto tell = [&](float mass) {
    p.masses[index] = {plan, mass};
    if (peer != nullptr) *reinterpret_cast<volatile uint64_t*>(peer) = plan | uint64_t{__float_as_uint(mass)} << 32;
  };
  if (!measures) {
    if (chunk == 0 && threadIdx.x == 0) tell(NAN);
    return;
  }
  const uint32_t num_keys = position + 1, first = chunk * kChunkKeys, end = min(first + kChunkKeys, num_keys);
  if (first >= num_keys) return;

  for (int i = threadIdx.x; i < p.group * p.head_dim; i += kThreads) {
    queries[i] = p.queries[static_cast<int64_t>(index) * p.group * p.head_dim + i];
  }
  for (uint32_t word = threadIdx.x; word < kChunkKeys / 32; word += kThreads) is_selected[word] = 0;
  __syncthreads();
  const auto select = [&](uint32_t key) {
    const uint32_t at = key - first;
    if (at < kChunkKeys) atomicOr(&is_selected[at / 32], 1u << at % 32);
  };
  if (p.residency != nullptr) {
    const ResidencyList residency = p.residency[index];
    for (uint32_t slot = threadIdx.x; slot < residency.pool_slots; slot += kThreads) {
      if (residency.last_plan[slot] == plan) select(residency.position_of[slot]);
    }
  } else {
    const uint32_t* const selected = p.selected + static_cast<int64_t>(index) * p.max_budget;
    for (uint32_t i = threadIdx.x; i < p.counts[index * p.count_stride]; i += kThreads) select(selected[i]);
  }
  __syncthreads();

  MassPart parts[kMaxGroup];
#pragma unroll
  for (int q = 0; q < kMaxGroup; ++q) parts[q] = {-INFINITY, 0, 0};
  for (uint32_t key = first + threadIdx.x; key < end; key += kThreads) {
    const uint32_t block = p.blocks[list.first_block + key / kBlockTokens], in_block = key % kBlockTokens;
    const auto* data =
        static_cast<const uint8_t*>(p.keys.keys) + block * p.keys.block_stride + in_block * p.keys.key_stride;
    float scores[kMaxGroup];
    ScoreKey<kFormat>(data, queries, p.group, p.head_dim, scores);
    float factor = p.scale * kLog2E;
    if constexpr (HasScales(kFormat)) {
      const float scale = p.keys.scales[(int64_t{block} * kBlockTokens + in_block) * p.keys.scale_stride];
      factor *= kFormat == UnitFormat::kI8 ? ScoredScale(scale) : scale;
    }
    const bool attended =
        key < list.first || key >= list.last || (is_selected[(key - first) / 32] >> (key - first) % 32 & 1) != 0;
#pragma unroll
    for (int q = 0; q < kMaxGroup; ++q) {
      if (q >= p.group) break;
      parts[q] = Join(parts[q], {scores[q] * factor, 1, attended ? 1.0f : 0.0f});
    }
  }
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int q = 0; q < kMaxGroup; ++q) {
    if (q >= p.group) break;
    const MassPart joined = JoinWarp(parts[q]);
    if (lane == 0) warp_parts[warp][q] = joined;
  }
  __syncthreads();
  MassPart* const of_list = scratch.parts + static_cast<int64_t>(index) * scratch.max_chunks * kMaxGroup;
  if (threadIdx.x < p.group) {
    MassPart joined = warp_parts[0][threadIdx.x];
    for (int w = 1; w < kWarps; ++w) joined = Join(joined, warp_parts[w][threadIdx.x]);
    of_list[chunk * kMaxGroup + threadIdx.x] = joined;
    __threadfence();
  }
  __syncthreads();
  const uint32_t num_chunks = (num_keys + kChunkKeys - 1) / kChunkKeys;
  // Wraps around: the last one leaves 0 for the next launch.
  if (threadIdx.x == 0) is_last = atomicInc(&p.arrivals[index], num_chunks - 1) == num_chunks - 1;
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  if (warp < p.group) {
    MassPart joined = {-INFINITY, 0, 0};
    for (uint32_t c = lane; c < num_chunks; c += 32) joined = Join(joined, LoadPart(of_list + c * kMaxGroup + warp));
    joined = JoinWarp(joined);
    if (lane == 0) masses[warp] = joined.attended / joined.all;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  float mean = 0;
  for (int q = 0; q < p.group; ++q) mean += masses[q];
  mean /= static_cast<float>(p.group);
  tell(mean > 1 ? 1.0f : mean);
}

size_t ScratchBytes(const AttendedMassParams& p) {
  size_t bytes = 0;
  MassScratch::At(p, nullptr, &bytes);
  return bytes;
}

void Launch(Stream stream, const AttendedMassParams& p) {
  const MassScratch scratch = MassScratch::At(p, p.scratch);
  const dim3 grid(scratch.max_chunks, static_cast<unsigned>(p.num_rows * p.num_kv_heads));
  auto* const kernel = p.keys.dtype == Dtype::kF8   ? AttendedMass<UnitFormat::kF8>
                       : p.keys.dtype == Dtype::kI8 ? AttendedMass<UnitFormat::kI8>
                                                    : AttendedMass<UnitFormat::kBf16>;
  kernel<<<grid, kThreads, 0, stream>>>(p, scratch);
}

}  // namespace

const AttendedMassKernels kAttendedMassKernels = {.mass_scratch_bytes = ScratchBytes, .attended_mass = Launch};

}  // namespace winnow::device
