#include <cuda.h>

#include <algorithm>

#include "common/base/check.h"
#include "kernels/cuda/attention/attention_lists.cuh"
#include "kernels/cuda/attention/latent_decode.h"
#include "kernels/cuda/attention/latent_tiles.cuh"
#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/device/tensor_map.h"
#include "kernels/device/params/latent.h"

// Decode attention over rows of latents: a list is cut into splits by its own length alone, thread blocks take splits
// in turn, and a second kernel merges what they leave in scratch, from the first split to the last.
namespace winnow::device {
namespace {

constexpr uint32_t kMostLatentSplits = 64, kLeastSplitRows = 256;  // two splits to a lane of a warp that merges
constexpr int kMostLists = 64 * 128;  // rows of a step, and query heads with lists of their own
constexpr int kMergeThreads = 128;

// Whole tiles.
__host__ __device__ uint32_t SplitRows(uint32_t count) {
  const uint32_t rows = CeilDiv(count, kMostLatentSplits);
  return max(kLeastSplitRows, CeilDiv(rows, kLatentTileKeys) * kLatentTileKeys);
}
__host__ __device__ uint32_t NumSplits(uint32_t count) {
  return CeilDiv(count, SplitRows(count));
}

struct LatentLaunch {
  CUtensorMap boxes;  // of the pool's rows, where there are two stages
  DecodeAttentionParams params;
  int num_lists = 0;
  int group = 0;             // query heads of a list
  int head_tiles = 0;        // thread blocks that share them
  uint32_t most_splits = 0;  // of a list
  int num_stages = 0;
  float* partials = nullptr;  // [num_lists, most_splits, group, key_dim], not divided
  float2* sums = nullptr;     // [num_lists, most_splits, group] largest score in units of log2, sum of weights
};

// Splits of the lists before each, and of all, to `first` [num_lists + 1] of shared memory, behind which there is room
// for a word of each warp. By all threads.
__device__ void CountSplits(const LatentLaunch& launch, uint32_t* first) {
  uint32_t* const of_warps = first + launch.num_lists + 1;
  const int per_thread = (launch.num_lists + kLatentThreads - 1) / kLatentThreads;
  const int begin = min(static_cast<int>(threadIdx.x) * per_thread, launch.num_lists);
  const int end = min(begin + per_thread, launch.num_lists), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t own = 0;
  for (int i = begin; i < end; ++i) own += NumSplits(launch.params.lists[i].count());
  uint32_t before = own;
  for (int step = 1; step < 32; step *= 2) {
    const uint32_t other = __shfl_up_sync(~0u, before, step);
    if (lane >= step) before += other;
  }
  if (lane == 31) of_warps[warp] = before;
  __syncthreads();
  before -= own;
  for (int i = 0; i < warp; ++i) before += of_warps[i];
  for (int i = begin; i < end; ++i) {
    first[i] = before;
    before += NumSplits(launch.params.lists[i].count());
  }
  if (threadIdx.x == kLatentThreads - 1) first[launch.num_lists] = before;
  __syncthreads();
}

// Whether rows of each 64 from the first on follow each other: of a list that begins with a page, and has no parts.
__device__ bool RowsFollow(const AttentionList& list) {
  const uint32_t first = list.recent_begin % list.ring_tokens;
  return list.sinks == 0 && list.selected_count == 0 && (list.ring_base + first) % kSlotPageTokens == 0 &&
         first + list.recent_count <= list.ring_tokens;
}

template <int kDim, int kMWarps>
__global__ void __launch_bounds__(kLatentThreads, 1) LatentDecodeKernel(const __grid_constant__ LatentLaunch launch) {
  using Tiles = LatentTiles<kDim, kMWarps>;
  extern __shared__ __align__(1024) unsigned char memory[];
  const DecodeAttentionParams& p = launch.params;
  auto* const first = reinterpret_cast<uint32_t*>(memory + LatentShared<kDim, kMWarps>::Bytes(launch.num_stages));
  WaitForInputs();
  LetDependentsStart();
  CountSplits(launch, first);
  Tiles tiles(memory, launch.num_stages, p.slot_pool, &launch.boxes, p.row.bytes(p.head_dim, Dtype::kBf16),
              p.head_dim / 8, p.scale);
  const uint32_t items = first[launch.num_lists] * launch.head_tiles;
  for (uint32_t item = blockIdx.x; item < items; item += gridDim.x) {
    // Tiles of heads read the same rows at about the same time.
    const uint32_t split_of_all = item / launch.head_tiles, tile = item % launch.head_tiles;
    int low = 0, high = launch.num_lists - 1;  // the last list that begins at or before it and has splits
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (first[middle] <= split_of_all) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    const uint32_t split = split_of_all - first[low];
    const AttentionList list = p.lists[low];
    const uint32_t count = list.count(), split_rows = SplitRows(count);
    const uint32_t begin = split * split_rows, end = min(begin + split_rows, count);
    const int first_head = tile * Tiles::kQueries, heads = min(launch.group - first_head, Tiles::kQueries);
    tiles.Begin();
    tiles.LoadQueries(p.q + (static_cast<int64_t>(low) * launch.group + first_head) * p.head_dim, heads);
    // Of a list whose rows follow each other: the page of each tile.
    static_assert(kSlotPageTokens == kLatentTileKeys);
    const uint32_t* const pages =
        p.pages + list.first_page + (list.ring_base + list.recent_begin % list.ring_tokens) / kSlotPageTokens;
    const uint32_t limits[2] = {end, end};
    tiles.Attend(
        begin, end, limits, RowsFollow(list),
        [&](uint32_t key) { return LoadIf(true, pages + key / kLatentTileKeys) * kSlotPageTokens; },
        [&](uint32_t key) {
          const ListRows rows(p, p.lists[low]);
          return rows.FindPage(rows.Find(key)).slot();
        });
    const int64_t at = (static_cast<int64_t>(low) * launch.most_splits + split) * launch.group + first_head;
#pragma unroll
    for (int query = 0; query < 2; ++query) {
      const int head = Tiles::FirstQuery() + 8 * query;
      if (head >= heads) continue;
      if (Tiles::NWarp() == 0 && Tiles::Lane() % 4 == 0) {
        launch.sums[at + head] = make_float2(tiles.largest[query], tiles.sum[query]);
      }
#pragma unroll
      for (int t = 0; t < Tiles::kValueTiles; ++t) {
        const int element = Tiles::ElementOf(t);
        if (element >= p.head_dim) continue;
        *reinterpret_cast<float2*>(launch.partials + (at + head) * p.head_dim + element) =
            make_float2(tiles.o[t][2 * query], tiles.o[t][2 * query + 1]);
      }
    }
  }
}

// Grid: query heads of a list, lists.
__global__ void __launch_bounds__(kMergeThreads) LatentMergeKernel(const __grid_constant__ LatentLaunch launch) {
  __shared__ float factors[kMostLatentSplits];
  WaitForInputs();
  LetDependentsStart();
  const DecodeAttentionParams& p = launch.params;
  const int list = blockIdx.y, head = blockIdx.x;
  const uint32_t splits = NumSplits(p.lists[list].count());
  const auto at = [&](uint32_t split) {
    return (static_cast<int64_t>(list) * launch.most_splits + split) * launch.group + head;
  };
  // Every warp has all sums, two in a lane, and adds them up in one order.
  const uint32_t lane = threadIdx.x % 32;
  float2 sums[2];
  float largest = -INFINITY;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t split = i * 32 + lane;
    sums[i] = split < splits ? launch.sums[at(split)] : make_float2(-INFINITY, 0);
    largest = fmaxf(largest, sums[i].x);
  }
  for (int distance = 16; distance > 0; distance /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, distance));
  }
  const float base = largest == -INFINITY ? 0 : largest;
  float total = 0;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float factor = Exp2(sums[i].x - base);
    total += sums[i].y * factor;
    if (threadIdx.x < 32) factors[i * 32 + lane] = factor;
  }
  total = WarpSum(total);
  __syncthreads();
  const float inverse = total > 0 ? 1 / total : 0;
  const int64_t query = static_cast<int64_t>(list) * launch.group + head;
  for (int i = threadIdx.x * 2; i < p.head_dim; i += 2 * kMergeThreads) {
    float sum[2] = {};
#pragma unroll 8
    for (uint32_t split = 0; split < splits; ++split) {
      const float2 o = *reinterpret_cast<const float2*>(launch.partials + at(split) * p.head_dim + i);
      sum[0] = fmaf(o.x, factors[split], sum[0]);
      sum[1] = fmaf(o.y, factors[split], sum[1]);
    }
    if (p.out_dtype == Dtype::kF32) {
      *reinterpret_cast<float2*>(static_cast<float*>(p.out) + query * p.head_dim + i) =
          make_float2(sum[0] * inverse, sum[1] * inverse);
    } else {
      *reinterpret_cast<uint32_t*>(static_cast<__nv_bfloat16*>(p.out) + query * p.head_dim + i) =
          PackBf16(sum[0] * inverse, sum[1] * inverse);
    }
  }
  if (p.lse != nullptr && threadIdx.x == 0) {
    p.lse[query] = total > 0 ? (largest + log2f(total)) * 0.6931471805599453f : -INFINITY;
  }
}

LatentLaunch LaunchOf(const DecodeAttentionParams& params) {
  LatentLaunch launch{};
  launch.params = params;
  launch.num_lists = params.num_rows * params.num_kv_heads;
  launch.group = params.num_query_heads / params.num_kv_heads;
  launch.most_splits = std::max<uint32_t>(1, std::min(kMostLatentSplits, CeilDiv(params.max_count, kLeastSplitRows)));
  return launch;
}

size_t SumBytes(const LatentLaunch& launch) {
  const size_t states = static_cast<size_t>(launch.num_lists) * launch.most_splits * launch.group;
  return (states * sizeof(float2) + 255) / 256 * 256;
}

template <int kDim, int kMWarps>
void LaunchDecode(Stream stream, LatentLaunch launch) {
  using Shared = LatentShared<kDim, kMWarps>;
  const size_t most = DeviceAttribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  const size_t lists = (launch.num_lists + 1 + kLatentWarps) * sizeof(uint32_t);
  launch.head_tiles = (launch.group + Shared::kQueries - 1) / Shared::kQueries;
  launch.num_stages = ComputeMajor() >= 9 && Shared::Bytes(2) + lists <= most ? 2 : 1;
  if (launch.num_stages == 2) {
    launch.boxes = TensorMapOf(launch.params.slot_pool, 2, launch.params.head_dim, int64_t{1} << 31,
                               static_cast<int64_t>(launch.params.row.bytes(launch.params.head_dim, Dtype::kBf16)),
                               kLatentTileKeys);
  }
  const int64_t items = static_cast<int64_t>(launch.num_lists) * launch.most_splits * launch.head_tiles;
  const int64_t blocks = std::min<int64_t>(items, DeviceAttribute(cudaDevAttrMultiProcessorCount));
  LaunchDependent(LatentDecodeKernel<kDim, kMWarps>,
                  {.grid = dim3(static_cast<unsigned>(blocks)),
                   .threads = kLatentThreads,
                   .shared_bytes = Shared::Bytes(launch.num_stages) + lists},
                  stream, launch);
}

}  // namespace

size_t LatentScratchBytes(const DecodeAttentionParams& params) {
  const LatentLaunch launch = LaunchOf(params);
  return SumBytes(launch) +
         static_cast<size_t>(launch.num_lists) * launch.most_splits * launch.group * params.head_dim * sizeof(float);
}

void LatentDecodeAttention(Stream stream, const DecodeAttentionParams& params) {
  WINNOW_CHECK(params.kv_dtype == Dtype::kBf16 && params.sinks == nullptr && params.remote_flags.peers == nullptr &&
               params.sends.from == nullptr);
  WINNOW_CHECK(params.head_dim % kLatentPiece == 0 && params.head_dim <= kMaxLatentKeyDim);
  WINNOW_CHECK(params.num_rows >= 1 && params.num_rows * params.num_kv_heads <= kMostLists);
  LatentLaunch launch = LaunchOf(params);
  launch.sums = static_cast<float2*>(params.scratch);
  launch.partials = reinterpret_cast<float*>(static_cast<char*>(params.scratch) + SumBytes(launch));
  VisitLatentDim(params.head_dim, [&](auto dim) {
    constexpr int kDim = decltype(dim)::value;
    if (launch.group <= 16) return LaunchDecode<kDim, 1>(stream, launch);
    if (launch.group <= 32) return LaunchDecode<kDim, 2>(stream, launch);
    LaunchDecode<kDim, 4>(stream, launch);
  });
  LaunchDependent(LatentMergeKernel, {.grid = dim3(launch.group, launch.num_lists), .threads = kMergeThreads}, stream,
                  launch);
}

}  // namespace winnow::device
