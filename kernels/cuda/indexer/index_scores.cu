#include <cuda_bf16.h>

#include <algorithm>

#include "common/base/check.h"
#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/device/row_math.cuh"
#include "kernels/cuda/matmul/matmul_mma.cuh"
#include "kernels/device/params/indexer.h"
#include "kernels/device/params/latent.h"
#include "kernels/device/params/predict.h"

// Thread blocks take tiles of index keys of all queries in turn, a warp 32 of a tile's keys, on the M side. Keys go
// from memory straight to registers, where they are multiplied with all heads of the query, which lie in shared memory:
// of 32 of k a lane takes 8 that follow each other, for two steps of mma, an order of k that both share.
namespace winnow::device {
namespace {

constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kWarpKeys = 32, kTileKeys = kWarps * kWarpKeys;
constexpr int kK = 32, kMostSteps = kMaxIndexDim / kK;
constexpr int kMostRows = 64;

// Bytes from head to head: 64 beside a multiple of 128, so that a lane group's loads are in different banks.
__host__ __device__ constexpr int HeadPitch(int dim) {
  return (dim * 2 + 127) / 128 * 128 + 64;
}
__host__ __device__ constexpr int WholeHeads(int num_heads) {
  return (num_heads + 7) / 8 * 8;
}

// What a query's row of the launch asks for.
struct IndexQuery {
  uint32_t num_keys, budget;

  __device__ IndexQuery(const IndexScoreParams& p, int row) {
    const uint32_t position = p.positions == nullptr ? p.first_position + row : p.positions[row];
    num_keys = position == kNoPosition ? 0 : position + 1;
    budget = p.budgets == nullptr ? p.max_budget : p.budgets[row];
  }
  __device__ bool Selects() const { return budget > 0 && num_keys > budget; }
};

// What the row's attention reads once its positions are there.
__device__ void NameSelection(const IndexScoreParams& p, int row) {
  const IndexQuery query(p, row);
  const bool selects = query.Selects();
  p.selections[row] = {.first_block = 0,
                       .num_keys = query.num_keys,
                       .first = 0,
                       .last = selects ? query.num_keys : 0,
                       .budget = query.budget,
                       .query = static_cast<uint32_t>(row)};
  if (p.lists == nullptr) return;
  AttentionList& list = p.lists[row];
  list.selected_first = row * p.max_budget;
  list.selected_count = selects ? query.budget : 0;
  if (selects) list.recent_count = 0;
}

// The heads of a query as bf16, zeros behind the last of them and behind each, and their weights. By all threads.
__device__ void LoadHeads(const IndexScoreParams& p, int row, unsigned char* heads, float* weights) {
  const int pitch = HeadPitch(p.dim), steps = (p.dim + kK - 1) / kK, padded = steps * kK;
  const float* const from = p.queries + static_cast<int64_t>(row) * p.num_heads * (p.dim + 1);
  for (int i = threadIdx.x; i < WholeHeads(p.num_heads) * padded / 2; i += kThreads) {
    const int head = i / (padded / 2), at = i % (padded / 2) * 2;
    const bool exists = head < p.num_heads && at < p.dim;  // rows of queries are aligned to 4 bytes alone
    const float* const pair = from + static_cast<int64_t>(head) * p.dim + at;
    const float low = exists ? pair[0] : 0, high = exists ? pair[1] : 0;
    *reinterpret_cast<uint32_t*>(heads + head * pitch + at * 2) = PackBf16(low, high);
  }
  for (int head = threadIdx.x; head < WholeHeads(p.num_heads); head += kThreads) {
    weights[head] = head < p.num_heads ? from[static_cast<int64_t>(p.num_heads) * p.dim + head] : 0.0f;
  }
}

// A lane's pieces of two halves of 16 keys, `line` and 8 behind it.
struct KeyPieces {
  uint4 at[kMostSteps][2];
};

__device__ KeyPieces LoadKeys(const IndexScoreParams& p, const AttentionList* list, uint32_t first, uint32_t num_keys) {
  const int lane = threadIdx.x % 32, piece = lane % 4 * 8;
  const int64_t row_elements = p.key_dim + p.dim;
  KeyPieces keys;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t key = min(first + half * 8 + lane / 4, num_keys - 1);
    int64_t row = key;
    if (list != nullptr) {
      const uint32_t local = list->ring_base + key;
      row = static_cast<int64_t>(p.pages[list->first_page + local / kSlotPageTokens]) * kSlotPageTokens +
            local % kSlotPageTokens;
    }
    const auto* const from = static_cast<const __nv_bfloat16*>(p.rows) + row * row_elements + p.key_dim;
#pragma unroll
    for (int step = 0; step < kMostSteps; ++step) {
      const int at = step * kK + piece;
      keys.at[step][half] = at < p.dim ? *reinterpret_cast<const uint4*>(from + at) : make_uint4(0, 0, 0, 0);
    }
  }
  return keys;
}

// Scores that are below zero count nothing; what is not a number stays so.
__device__ float Positive(float score) {
  return score < 0 ? 0.0f : score;
}

__global__ void __launch_bounds__(kThreads, 2) IndexScoresKernel(const __grid_constant__ IndexScoreParams p) {
  extern __shared__ __align__(16) unsigned char heads[];
  __shared__ float weights[kMaxIndexHeads];
  __shared__ uint32_t first_tile[kMostRows + 1];
  WaitForInputs();
  LetDependentsStart();
  if (blockIdx.x == 0 && threadIdx.x < p.num_rows) NameSelection(p, threadIdx.x);
  if (threadIdx.x == 0) first_tile[0] = 0;
  for (int row = threadIdx.x; row < p.num_rows; row += kThreads) {
    const IndexQuery query(p, row);
    first_tile[row + 1] = query.Selects() ? (query.num_keys + kTileKeys - 1) / kTileKeys : 0;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int row = 0; row < p.num_rows; ++row) first_tile[row + 1] += first_tile[row];
  }
  __syncthreads();
  const uint32_t tiles = first_tile[p.num_rows], per_block = (tiles + gridDim.x - 1) / gridDim.x;
  const uint32_t begin = min(blockIdx.x * per_block, tiles), end = min(begin + per_block, tiles);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, pitch = HeadPitch(p.dim);
  const int steps = (p.dim + kK - 1) / kK;
  int row = 0, loaded = -1;
  for (uint32_t tile = begin; tile < end; ++tile) {
    while (tile >= first_tile[row + 1]) ++row;
    if (row != loaded) {
      __syncthreads();
      LoadHeads(p, row, heads, weights);
      __syncthreads();
      loaded = row;
    }
    const uint32_t num_keys = IndexQuery(p, row).num_keys;
    const uint32_t first = (tile - first_tile[row]) * kTileKeys + warp * kWarpKeys;
    if (first >= num_keys) continue;
    const AttentionList* const list = p.lists == nullptr ? nullptr : p.lists + row;
    const KeyPieces keys[2] = {LoadKeys(p, list, first, num_keys), LoadKeys(p, list, first + 16, num_keys)};
    float scores[2][2] = {};  // of two times 16 keys: of key `line`, and of the one 8 behind it
    for (int head = 0; head < p.num_heads; head += 8) {
      float sums[2][4] = {};
      const unsigned char* const of_lane = heads + (head + lane / 4) * pitch + lane % 4 * 16;
#pragma unroll
      for (int step = 0; step < kMostSteps; ++step) {
        if (step >= steps) break;
        const uint4 b = *reinterpret_cast<const uint4*>(of_lane + step * kK * 2);
#pragma unroll
        for (int t = 0; t < 2; ++t) {
          const uint4 &low = keys[t].at[step][0], &high = keys[t].at[step][1];
          const uint32_t one[4] = {low.x, high.x, low.y, high.y}, other[4] = {low.z, high.z, low.w, high.w};
          MultiplyAccumulate(sums[t], one, b.x, b.y);
          MultiplyAccumulate(sums[t], other, b.z, b.w);
        }
      }
      const float2 weight = *reinterpret_cast<const float2*>(weights + head + lane % 4 * 2);
#pragma unroll
      for (int t = 0; t < 2; ++t) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          scores[t][half] = fmaf(weight.x, Positive(sums[t][2 * half]), scores[t][half]);
          scores[t][half] = fmaf(weight.y, Positive(sums[t][2 * half + 1]), scores[t][half]);
        }
      }
    }
#pragma unroll
    for (int t = 0; t < 2; ++t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float score = scores[t][half];
        score += __shfl_xor_sync(~0u, score, 1);
        score += __shfl_xor_sync(~0u, score, 2);
        const uint32_t key = first + t * 16 + half * 8 + lane / 4;
        if (lane % 4 == 0 && key < num_keys) p.scores[row * p.stride + key] = isnan(score) ? 0.0f : score;
      }
    }
  }
}

void Scores(Stream stream, const IndexScoreParams& params) {
  WINNOW_CHECK(params.num_rows >= 1 && params.num_rows <= kMostRows && params.stride % 4 == 0);
  WINNOW_CHECK(params.num_heads <= kMaxIndexHeads && params.dim % 8 == 0 && params.dim <= kMaxIndexDim &&
               params.key_dim % 8 == 0);
  const int64_t tiles = (int64_t{params.max_keys} + kTileKeys - 1) / kTileKeys * params.num_rows;
  const int64_t most = 2 * DeviceAttribute(cudaDevAttrMultiProcessorCount);
  LaunchDependent(IndexScoresKernel,
                  {.grid = dim3(static_cast<unsigned>(std::clamp<int64_t>(tiles, 1, most))),
                   .threads = kThreads,
                   .shared_bytes = static_cast<size_t>(WholeHeads(params.num_heads)) * HeadPitch(params.dim)},
                  stream, params);
}

}  // namespace

const IndexerKernels kIndexerKernels = {.scores = Scores};

}  // namespace winnow::device
