#include <cuda.h>

#include "common/base/check.h"
#include "kernels/cuda/attention/latent_tiles.cuh"
#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/device/tensor_map.h"
#include "kernels/cuda/prefill/prefill_latent.h"
#include "kernels/device/params/latent.h"

// All heads of a query see the same rows: a thread block takes 64 pairs of a query and a head, the heads of
// neighbouring queries, or where each query has rows of its own those of one.
namespace winnow::device {
namespace {

constexpr int kMWarps = 4;

// What the first `count` of a block's pairs have attended to, of which the first is `first` of all.
template <typename Tiles>
__device__ void StorePairs(const PrefillAttentionParams& p, const Tiles& tiles, int64_t first, int count) {
#pragma unroll
  for (int query = 0; query < 2; ++query) {
    const int pair = Tiles::FirstQuery() + 8 * query;
    if (pair >= count) continue;
    const float inverse = 1 / tiles.sum[query];
    auto* const to = static_cast<__nv_bfloat16*>(p.out) + (first + pair) * p.head_dim;
#pragma unroll
    for (int t = 0; t < Tiles::kValueTiles; ++t) {
      const int element = Tiles::ElementOf(t);
      if (element >= p.head_dim) continue;
      *reinterpret_cast<uint32_t*>(to + element) =
          PackBf16(tiles.o[t][2 * query] * inverse, tiles.o[t][2 * query + 1] * inverse);
    }
  }
}

template <int kDim>
__global__ void __launch_bounds__(kLatentThreads, 1)
    PrefillLatentKernel(const __grid_constant__ PrefillAttentionParams p, const __grid_constant__ CUtensorMap boxes,
                        const int num_stages) {
  using Tiles = LatentTiles<kDim, kMWarps>;
  extern __shared__ __align__(1024) unsigned char memory[];
  WaitForInputs();
  LetDependentsStart();
  const int pairs = p.num_queries * p.num_query_heads;
  // The last queries see the most keys and go first, so that the GPU's ends meet.
  const int first = (gridDim.x - 1 - blockIdx.x) * Tiles::kQueries, count = min(pairs - first, Tiles::kQueries);
  Tiles tiles(memory, num_stages, p.kv, &boxes, p.row.bytes(p.head_dim, Dtype::kBf16), p.head_dim / 8, p.scale);
  tiles.Begin();
  tiles.LoadQueries(static_cast<const __nv_bfloat16*>(p.q) + static_cast<int64_t>(first) * p.head_dim, count);
  uint32_t limits[2];
#pragma unroll
  for (int query = 0; query < 2; ++query) {
    const int pair = first + min(Tiles::FirstQuery() + 8 * query, count - 1);
    limits[query] = p.first_position + pair / p.num_query_heads + 1;
  }
  const uint32_t end = p.first_position + (first + count - 1) / p.num_query_heads + 1;
  const auto row_of = [](uint32_t key) { return key; };
  tiles.Attend(0, end, limits, /*follow=*/true, row_of, row_of);
  StorePairs(p, tiles, first, count);
}

// A grid of tiles of heads, and of queries.
template <int kDim>
__global__ void __launch_bounds__(kLatentThreads, 1)
    SelectedLatentKernel(const __grid_constant__ PrefillAttentionParams p, const int num_stages) {
  using Tiles = LatentTiles<kDim, kMWarps>;
  extern __shared__ __align__(1024) unsigned char memory[];
  WaitForInputs();
  LetDependentsStart();
  const int head = blockIdx.x * Tiles::kQueries, count = min(p.num_query_heads - head, Tiles::kQueries);
  const int64_t first = static_cast<int64_t>(blockIdx.y) * p.num_query_heads + head;
  Tiles tiles(memory, num_stages, p.kv, nullptr, p.row.bytes(p.head_dim, Dtype::kBf16), p.head_dim / 8, p.scale);
  tiles.Begin();
  tiles.LoadQueries(static_cast<const __nv_bfloat16*>(p.q) + first * p.head_dim, count);
  const uint32_t* const selected = p.selected + static_cast<int64_t>(blockIdx.y) * p.selected_count;
  const uint32_t limits[2] = {p.selected_count, p.selected_count};
  const auto row_of = [&](uint32_t key) { return selected[key]; };
  tiles.Attend(0, p.selected_count, limits, /*follow=*/false, row_of, row_of);
  StorePairs(p, tiles, first, count);
}

template <int kDim>
void Launch(Stream stream, const PrefillAttentionParams& params) {
  using Shared = LatentShared<kDim, kMWarps>;
  const size_t most = DeviceAttribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  const int num_stages = ComputeMajor() >= 9 && Shared::Bytes(2) <= most ? 2 : 1;
  if (params.selected != nullptr) {
    const int tiles = (params.num_query_heads + Shared::kQueries - 1) / Shared::kQueries;
    return LaunchDependent(SelectedLatentKernel<kDim>,
                           {.grid = dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(params.num_queries)),
                            .threads = kLatentThreads,
                            .shared_bytes = Shared::Bytes(num_stages)},
                           stream, params, num_stages);
  }
  CUtensorMap boxes = {};
  if (num_stages == 2) {
    boxes = TensorMapOf(params.kv, 2, params.head_dim, int64_t{1} << 31,
                        static_cast<int64_t>(params.row.bytes(params.head_dim, Dtype::kBf16)), kLatentTileKeys);
  }
  const int64_t pairs = int64_t{params.num_queries} * params.num_query_heads;
  LaunchDependent(PrefillLatentKernel<kDim>,
                  {.grid = dim3(static_cast<unsigned>((pairs + Shared::kQueries - 1) / Shared::kQueries)),
                   .threads = kLatentThreads,
                   .shared_bytes = Shared::Bytes(num_stages)},
                  stream, params, boxes, num_stages);
}

}  // namespace

void PrefillAttentionLatent(Stream stream, const PrefillAttentionParams& params) {
  WINNOW_CHECK(params.num_kv_heads == 1 && params.streaming_window == nullptr && params.sliding_window == 0 &&
               params.sinks == nullptr);
  WINNOW_CHECK(params.head_dim % kLatentPiece == 0 && params.head_dim <= kMaxLatentKeyDim);
  WINNOW_CHECK(params.selected == nullptr || (params.selected_count > 0 && params.num_queries < 65536));
  VisitLatentDim(params.head_dim, [&](auto dim) { Launch<decltype(dim)::value>(stream, params); });
}

}  // namespace winnow::device
