#pragma once
#include <cuda_bf16.h>

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/attention/attention_fragments.cuh"
#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/fence_reads.cuh"
#include "kernels/cuda/device/row_math.cuh"
#include "kernels/cuda/matmul/matmul_mma.cuh"

// Attention over rows whose keys are the values, too: some queries, which see the same rows as far as their limits
// allow, against tiles of 64 keys in shared memory. Warps share the queries, 16 to each of kMWarps, and among those the
// keys of a tile while they are scored and the elements of keys while they are weighed. A tile is on its way while the
// one before is worked on, where shared memory has room for two: then the copy engine brings tiles whose rows follow
// each other, in boxes of 64 elements. Threads that copy wait for memory before they can work.
//
// Keys come in tiles from the first on, and a tile of which a query sees nothing leaves its state as it is, bit by bit.
namespace winnow::device {

inline constexpr int kLatentWarps = 8, kLatentThreads = 32 * kLatentWarps, kLatentTileKeys = 64;
inline constexpr uint32_t kNoRow = ~0u;

// kDim: elements of a key, rounded up with zeros to a multiple of 64.
template <int kDim, int kMWarps>
struct LatentShared {
  static constexpr int kQueries = 16 * kMWarps, kNWarps = kLatentWarps / kMWarps;
  static constexpr int kQueryBytes = kQueries * kDim * 2, kStageBytes = kLatentTileKeys * kDim * 2;
  static constexpr int kWeightBytes = kQueries * kLatentTileKeys * 2;
  struct Exchange {
    float of_warps[kNWarps][kQueries];  // maxima, in the end sums
    uint32_t rows[2][kLatentTileKeys];  // of a tile's keys, or the first alone
    uint64_t full[2];                   // barriers of the stages, for boxes
  };
  static constexpr size_t Bytes(int stages) {
    return kQueryBytes + static_cast<size_t>(stages) * kStageBytes + kWeightBytes + sizeof(Exchange);
  }
  static_assert(kDim % 64 == 0 && kDim / 8 % kNWarps == 0);
};

// Where 16 bytes of a row lie in rows of columns of 128 bytes, so that the same pieces of 8 rows are in different
// banks.
__device__ inline uint32_t LatentPieceAt(int rows, uint32_t row, uint32_t piece) {
  return piece / 8 * (rows * 128) + row * 128 + (piece ^ row) % 8 * 16;
}

template <int kDim, int kMWarps>
class LatentTiles {
 public:
  using Shared = LatentShared<kDim, kMWarps>;
  static constexpr int kQueries = Shared::kQueries, kNWarps = Shared::kNWarps, kPieces = kDim / 8;
  static constexpr int kColumns = kDim / 64;                       // of 128 bytes
  static constexpr int kKeyTiles = kLatentTileKeys / kNWarps / 8;  // of 8 keys, that a warp scores
  static constexpr int kColumnTiles = 8 / kNWarps;                 // of 8 elements of a column, that a warp weighs
  static constexpr int kValueTiles = kColumns * kColumnTiles;
  static constexpr bool kHoldsQueries = kMWarps == 1;  // in registers, as all warps have the same

  // `memory`: Bytes(stages) of shared memory, aligned to 1024 bytes. `boxes`: of the rows of `pool`, 64 to a box.
  // `row_pieces`: of a key, without padding. By all threads, behind WaitForInputs; Begin comes before anything else.
  __device__ LatentTiles(unsigned char* memory, int stages, const void* pool, const void* boxes, size_t row_bytes,
                         int row_pieces, float scale)
      : pool_(static_cast<const char*>(pool)),
        boxes_(boxes),
        row_bytes_(row_bytes),
        queries_(SharedAddress(memory)),
        stages_at_(queries_ + Shared::kQueryBytes),
        weights_(stages_at_ + stages * Shared::kStageBytes),
        exchange_(*reinterpret_cast<typename Shared::Exchange*>(memory + Shared::kQueryBytes +
                                                                stages * Shared::kStageBytes + Shared::kWeightBytes)),
        has_two_stages_(stages == 2),
        row_pieces_(row_pieces),
        to_log2_(scale * 1.4426950408889634f) {
    if (threadIdx.x != 0) return;
    for (uint64_t& barrier : exchange_.full) InitBarrier(SharedAddress(&barrier), 1);
    FenceReadsForCopies();
    FenceForCopyEngine();
  }

  // Other queries, which have seen nothing.
  __device__ void Begin() {
#pragma unroll
    for (int query = 0; query < 2; ++query) largest[query] = -INFINITY, sum[query] = 0;
#pragma unroll
    for (int t = 0; t < kValueTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) o[t][i] = 0;
    }
    FenceReadsForCopies();
    __syncthreads();  // barriers are ready, and shared memory is used again
  }

  __device__ static int Lane() {
    return threadIdx.x % 32;
  }
  __device__ static int MWarp() {
    return threadIdx.x / 32 % kMWarps;
  }
  __device__ static int NWarp() {
    return threadIdx.x / 32 / kMWarps;
  }
  // The thread has this query and the one 8 behind it.
  __device__ static int FirstQuery() {
    return MWarp() * 16 + Lane() / 4;
  }
  // And of each of its tiles, two elements of keys from this one on.
  __device__ static int ElementOf(int tile) {
    return tile / kColumnTiles * 64 + (NWarp() * kColumnTiles + tile % kColumnTiles) * 8 + Lane() % 4 * 2;
  }

  // Queries [0, count) from `from`, key_dim elements of f32 or bf16 each; zeros behind them.
  template <typename T>
  __device__ void LoadQueries(const T* from, int count) {
    for (int i = threadIdx.x; i < kQueries * kPieces; i += kLatentThreads) {
      const int query = i / kPieces, piece = i % kPieces;
      uint4 bits = make_uint4(0, 0, 0, 0);
      if (query < count && piece < row_pieces_) {
        const Float8 values = LoadFloat8(from + (static_cast<int64_t>(query) * row_pieces_ + piece) * 8);
        const float* v = values.at;
        bits = make_uint4(PackBf16(v[0], v[1]), PackBf16(v[2], v[3]), PackBf16(v[4], v[5]), PackBf16(v[6], v[7]));
      }
      const uint32_t to = queries_ + LatentPieceAt(kQueries, query, piece);
      asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(bits.x), "r"(bits.y), "r"(bits.z),
                   "r"(bits.w)
                   : "memory");
    }
  }

  // Attends to keys [begin, end), `begin` a multiple of a tile. `follow`: rows of each tile follow each other, from
  // first_row(its first key) on; else key j lies in row_of(j). The thread's queries see keys below `limits`. By all
  // threads, behind LoadQueries. What finds rows should keep little between calls: registers are few.
  template <typename FirstRow, typename RowOf>
  __device__ void Attend(uint32_t begin, uint32_t end, const uint32_t (&limits)[2], bool follow,
                         const FirstRow& first_row, const RowOf& row_of) {
    const uint32_t tiles = (end - begin + kLatentTileKeys - 1) / kLatentTileKeys;
    const auto find = [&](uint32_t tile) {
      const uint32_t first = begin + tile * kLatentTileKeys, key = first + threadIdx.x;
      if (tile >= tiles || threadIdx.x >= (follow ? 1 : kLatentTileKeys) || key >= end) return kNoRow;
      return follow ? first_row(first) : row_of(key);
    };
    const auto keep = [&](uint32_t tile, uint32_t row) {
      if (threadIdx.x < kLatentTileKeys) exchange_.rows[tile % 2][threadIdx.x] = row;
    };
    keep(0, find(0));
    keep(1, find(1));
    __syncthreads();
    // Behind the last row there may be anything: of a tile that ends before it threads copy what there is.
    const auto in_boxes = [&](uint32_t tile) {
      return follow && has_two_stages_ && (tile + 1) * kLatentTileKeys <= end - begin;
    };
    const auto copy = [&](uint32_t tile, int stage) {
      if (tile < tiles && in_boxes(tile)) {
        CopyBoxes(tile, stage);
      } else if (tile < tiles) {
        Copy(tile, stage, end - begin - tile * kLatentTileKeys, follow);
      }
      asm volatile("cp.async.commit_group;" ::: "memory");
    };
    copy(0, 0);
    if constexpr (kHoldsQueries) {
#pragma unroll
      for (int step = 0; step < kColumns * 4; ++step) LoadQuery(step, held_[step]);
    }
    for (uint32_t tile = 0; tile < tiles; ++tile) {
      const int stage = has_two_stages_ ? static_cast<int>(tile % 2) : 0;
      if (has_two_stages_) {
        FenceReadsForCopies();
        __syncthreads();  // the stage of the next tile is free, and its rows are known
        copy(tile + 1, stage ^ 1);
      }
      const uint32_t row_ahead = find(tile + 2);
      if (in_boxes(tile)) {
        WaitForPhase(SharedAddress(&exchange_.full[stage]), phases_ >> stage & 1);
        phases_ ^= 1u << stage;
      } else {
        if (has_two_stages_) {
          WaitForCopies<1>();
        } else {
          WaitForCopies<0>();
        }
        __syncthreads();
      }
      const uint32_t keys = stages_at_ + stage * Shared::kStageBytes;
      Score(keys, begin + tile * kLatentTileKeys, limits);
      Weigh(keys);
      keep(tile, row_ahead);
      if (has_two_stages_) continue;
      __syncthreads();
      copy(tile + 1, 0);
    }
    WaitForCopies<0>();
    Finish();
  }

  // Of the thread's two queries: the largest score in units of log2, the sum of weights, and sums of weighed elements
  // o[tile][2 * query + element].
  float largest[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0, 0};
  float o[kValueTiles][4] = {};

 private:
  static constexpr int kColumnBytes = kLatentTileKeys * 128;  // of all keys of a tile

  template <int kPending>
  __device__ static void WaitForCopies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
  }

  // Eight threads to a column of a key. `left`: keys from the tile's first on.
  __device__ void Copy(uint32_t tile, int stage, uint32_t left, bool follow) {
    const uint32_t* const rows = exchange_.rows[tile % 2];
    const int piece = threadIdx.x % 8;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t key = threadIdx.x / 8 + half * (kLatentThreads / 8);
      const uint32_t row = key >= left ? kNoRow : follow ? rows[0] + key : rows[key];
      const char* const from = pool_ + (row == kNoRow ? 0 : row * row_bytes_) + piece * 16;
      const uint32_t to = stages_at_ + stage * Shared::kStageBytes + LatentPieceAt(kLatentTileKeys, key, piece);
#pragma unroll
      for (int column = 0; column < kColumns; ++column) {
        const bool exists = row != kNoRow && column * 8 + piece < row_pieces_;
        CopyAsync16(to + column * kColumnBytes, from + column * 128, exists);  // reads nothing of what does not exist
      }
    }
  }

  __device__ void CopyBoxes(uint32_t tile, int stage) {
    if (threadIdx.x != 0) return;
    const uint32_t first = exchange_.rows[tile % 2][0], full = SharedAddress(&exchange_.full[stage]);
    ExpectBytes(full, Shared::kStageBytes);
    Arrive(full);
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
      CopyBox(stages_at_ + stage * Shared::kStageBytes + column * kColumnBytes, boxes_, column * 64, first, full);
    }
  }

  // Elements [16 * step, 16 * step + 16) of the warp's queries.
  __device__ void LoadQuery(int step, uint32_t (&a)[4]) const {
    const int lane = Lane();
    const uint32_t first = LatentPieceAt(kQueries, MWarp() * 16 + lane % 16, lane / 16);
    LoadTiles(a, queries_ + (first ^ (step % 4 * 32)) + step / 4 * (kQueries * 128));
  }

  // The weights of the tile's keys to shared memory; what has been weighed before is brought to the new maxima.
  __device__ void Score(uint32_t keys, uint32_t first_key, const uint32_t (&limits)[2]) {
    const int lane = Lane(), first = NWarp() * kKeyTiles * 8;
    constexpr int kChains = kKeyTiles == 1 ? 2 : 1;  // of products that wait for each other
    float sums[kChains][kKeyTiles][4] = {};
    const uint32_t piece = LatentPieceAt(kLatentTileKeys, first + lane % 8, lane / 8);
#pragma unroll(kHoldsQueries ? kColumns * 2 : kMWarps == 4 ? 2 : 6)
    for (int step = 0; step < kColumns * 2; ++step) {  // of 32 elements
      uint32_t a[2][4];
      if constexpr (!kHoldsQueries) {
        LoadQuery(2 * step, a[0]);
        LoadQuery(2 * step + 1, a[1]);
      }
#pragma unroll
      for (int t = 0; t < kKeyTiles; ++t) {
        uint32_t b[4];
        LoadTiles(b, keys + (piece ^ (step % 2 * 64)) + t * 1024 + step / 2 * kColumnBytes);
        MultiplyAccumulate(sums[0][t], kHoldsQueries ? held_[2 * step] : a[0], b[0], b[1]);
        MultiplyAccumulate(sums[kChains - 1][t], kHoldsQueries ? held_[2 * step + 1] : a[1], b[2], b[3]);
      }
    }
    float(&s)[kKeyTiles][4] = sums[0];
    if constexpr (kChains > 1) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[0][i] += sums[1][0][i];
    }
    float m[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int t = 0; t < kKeyTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t key = first_key + first + t * 8 + lane % 4 * 2 + i % 2;
        s[t][i] = key < limits[i / 2] ? s[t][i] * to_log2_ : -INFINITY;
        m[i / 2] = fmaxf(m[i / 2], s[t][i]);
      }
    }
#pragma unroll
    for (int query = 0; query < 2; ++query) {
      m[query] = fmaxf(m[query], __shfl_xor_sync(~0u, m[query], 1));
      m[query] = fmaxf(m[query], __shfl_xor_sync(~0u, m[query], 2));
      if (lane % 4 == 0) exchange_.of_warps[NWarp()][FirstQuery() + 8 * query] = m[query];
    }
    __syncthreads();
    float base[2];
#pragma unroll
    for (int query = 0; query < 2; ++query) {
      float most = largest[query];
#pragma unroll
      for (int warp = 0; warp < kNWarps; ++warp) most = fmaxf(most, exchange_.of_warps[warp][FirstQuery() + 8 * query]);
      base[query] = most == -INFINITY ? 0 : most;
      const float keep = Exp2(largest[query] - base[query]);  // exactly 1 where the largest stays
      largest[query] = most;
      sum[query] *= keep;
#pragma unroll
      for (int t = 0; t < kValueTiles; ++t) o[t][2 * query] *= keep, o[t][2 * query + 1] *= keep;
    }
#pragma unroll
    for (int t = 0; t < kKeyTiles; ++t) {
#pragma unroll
      for (int query = 0; query < 2; ++query) {
        const float low = Exp2(s[t][2 * query] - base[query]), high = Exp2(s[t][2 * query + 1] - base[query]);
        sum[query] += low + high;
        const uint32_t to = weights_ + LatentPieceAt(kQueries, FirstQuery() + 8 * query, first / 8 + t) + lane % 4 * 4;
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(PackBf16(low, high)) : "memory");
      }
    }
    __syncthreads();
  }

  __device__ void Weigh(uint32_t keys) {
    const int lane = Lane();
    uint32_t w[kLatentTileKeys / 16][4];
#pragma unroll
    for (int step = 0; step < kLatentTileKeys / 16; ++step) {
      LoadTiles(w[step], weights_ + LatentPieceAt(kQueries, MWarp() * 16 + lane % 16, step * 2 + lane / 16));
    }
    const uint32_t first = keys + LatentPieceAt(kLatentTileKeys, lane, NWarp() * kColumnTiles);
#pragma unroll
    for (int t = 0; t < kValueTiles; ++t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t v[4];
        LoadTilesTransposed(v, (first ^ (t % kColumnTiles * 16)) + half * 4096 + t / kColumnTiles * kColumnBytes);
        MultiplyAccumulate(o[t], w[2 * half], v[0], v[1]);
        MultiplyAccumulate(o[t], w[2 * half + 1], v[2], v[3]);
      }
    }
  }

  // Sums over all keys, in the order of threads and warps.
  __device__ void Finish() {
    __syncthreads();
#pragma unroll
    for (int query = 0; query < 2; ++query) {
      sum[query] += __shfl_xor_sync(~0u, sum[query], 1);
      sum[query] += __shfl_xor_sync(~0u, sum[query], 2);
      if (Lane() % 4 == 0) exchange_.of_warps[NWarp()][FirstQuery() + 8 * query] = sum[query];
    }
    __syncthreads();
#pragma unroll
    for (int query = 0; query < 2; ++query) {
      sum[query] = 0;
#pragma unroll
      for (int warp = 0; warp < kNWarps; ++warp) sum[query] += exchange_.of_warps[warp][FirstQuery() + 8 * query];
    }
  }

  const char* const pool_;
  const void* const boxes_;
  const size_t row_bytes_;
  const uint32_t queries_, stages_at_, weights_;
  typename Shared::Exchange& exchange_;
  const bool has_two_stages_;
  const int row_pieces_;
  const float to_log2_;
  uint32_t phases_ = 0;  // of the barriers, a bit each
  uint32_t held_[kHoldsQueries ? kColumns * 4 : 1][4];
};

// The kDim of a key, as a constant.
template <typename Visit>
void VisitLatentDim(int key_dim, const Visit& visit) {
  if (key_dim <= 64) return visit(std::integral_constant<int, 64>());
  if (key_dim <= 128) return visit(std::integral_constant<int, 128>());
  if (key_dim <= 320) return visit(std::integral_constant<int, 320>());
  return visit(std::integral_constant<int, 576>());
}

}  // namespace winnow::device
