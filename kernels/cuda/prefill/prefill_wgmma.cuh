#pragma once
#include <cuda.h>

#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/device/hopper.cuh"
#include "kernels/cuda/device/row_math.cuh"
#include "kernels/cuda/prefill/prefill_mask.cuh"

// FlashAttention-3 (arXiv:2407.08608): one warpgroup keeps copies of K and V tiles in flight, two others have 64
// queries of one head each. While a warpgroup's softmax runs, its product with the V tile before and the other
// warpgroup's products keep the tensor cores busy; named barriers make the two take turns.
//
// Of rows of int8 (kScaled) K and V are codes in bf16, and their scales come beside the tiles: scores are multiplied by
// those of keys, and weights, before they are rounded for the product with V, by those of values.

namespace winnow::device::prefill {

inline constexpr int kWarpgroup = 128;
inline constexpr int kConsumers = 2;
inline constexpr int kThreads = kWarpgroup * (1 + kConsumers);
inline constexpr int kConsumerQueries = 64;
inline constexpr int kQueries = kConsumers * kConsumerQueries;
inline constexpr int kStages = 2;
inline constexpr float kLog2E = 1.44269504088896341f;
inline constexpr float kMostExcess = 8;
// Named barriers: 0 is __syncthreads'.
inline constexpr int kTurnBarrier = 1;   // and the next, one per consumer
inline constexpr int kWriteBarrier = 3;  // and the next

template <int kHeadDim, bool kScaled>
struct Layout {
  static constexpr int kTile = kHeadDim > 128 ? 80 : 128;
  using Block = SwizzledBlock<kHeadDim % 64 == 0 ? 64 : 32>;
  static constexpr int kBlocks = kHeadDim / Block::kColumns;
  static constexpr int kQBlockBytes = kQueries * Block::kPitchBytes;
  static constexpr int kTileBlockBytes = kTile * Block::kPitchBytes;
  static constexpr int kQBytes = kBlocks * kQBlockBytes;
  static constexpr int kTileBytes = kBlocks * kTileBlockBytes;
  // Of the keys, then of the values of a stage's tile.
  static constexpr int kScaleBytes = kScaled ? kTile * static_cast<int>(sizeof(float)) : 0;
  static constexpr int kAlignment = 1024;
  static constexpr size_t kBytes = kQBytes + 2 * kStages * (kTileBytes + kScaleBytes) + kAlignment;

  // Of stage `stage`, in the shared memory that begins with the queries.
  static __device__ unsigned char* Tile(unsigned char* shared, int stage, bool is_v) {
    return shared + kQBytes + (2 * stage + is_v) * kTileBytes;
  }
  static __device__ float* Scales(unsigned char* shared, int stage, bool is_v) {
    return reinterpret_cast<float*>(shared + kQBytes + 2 * kStages * kTileBytes + (2 * stage + is_v) * kScaleBytes);
  }
};

struct TensorMaps {
  CUtensorMap q, kv, out;
};

// Which queries and head a CTA has. Heads come in sections whose K and V stay in the L2 together, the longest runs of a
// section first.
struct WorkOrder {
  int num_heads, section_heads, num_query_blocks;

  __device__ void Find(int item, int* head, int* query_block) const {
    const int section = item / (section_heads * num_query_blocks);
    const int first_head = section * section_heads;
    const int heads = min(section_heads, num_heads - first_head);
    const int rest = item - first_head * num_query_blocks;
    *head = first_head + rest % heads;
    *query_block = num_query_blocks - 1 - rest / heads;
  }
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

struct Barriers {
  uint64_t q_full;
  uint64_t k_full[kStages], v_full[kStages], k_empty[kStages], v_empty[kStages];
};

template <int kHeadDim, bool kScaled>
__device__ void Produce(const PrefillAttentionParams& p, const TensorMaps& maps,
                        const PrefillMask<Layout<kHeadDim, kScaled>::kTile>& mask, int head, int kv_head,
                        int first_query, unsigned char* q_shared, Barriers& barriers) {
  using L = Layout<kHeadDim, kScaled>;
  ArriveExpecting(&barriers.q_full, L::kQBytes);
  for (int b = 0; b < L::kBlocks; ++b) {
    LoadTensor(q_shared + b * L::kQBlockBytes, &maps.q, b * L::Block::kColumns, head, first_query, &barriers.q_full);
  }
  int i = 0;
  for (int tile = mask.FirstTile(); tile < mask.EndTile(); tile = mask.NextTile(tile), ++i) {
    const int stage = i % kStages;
    const uint32_t parity = i / kStages % 2;
    for (const bool is_v : {false, true}) {
      Wait(is_v ? &barriers.v_empty[stage] : &barriers.k_empty[stage], parity ^ 1);
      uint64_t* full = is_v ? &barriers.v_full[stage] : &barriers.k_full[stage];
      ArriveExpecting(full, L::kTileBytes + L::kScaleBytes);
      unsigned char* to = L::Tile(q_shared, stage, is_v);
      for (int b = 0; b < L::kBlocks; ++b) {
        LoadTensor(to + b * L::kTileBlockBytes, &maps.kv, is_v * kHeadDim + b * L::Block::kColumns, tile * L::kTile,
                   kv_head, full);
      }
      if constexpr (kScaled) {
        const float* const scales = (is_v ? p.value_scales : p.key_scales) + kv_head * p.kv_head_stride;
        LoadBytes(L::Scales(q_shared, stage, is_v), scales + tile * L::kTile, L::kScaleBytes, full);
      }
    }
  }
}

// The state of two rows of one thread: lane / 4 of its warp, and 8 below.
struct RowState {
  // What weights are relative to: the largest score when it was last raised, which no weight exceeds by more than
  // 2^kMostExcess. While it stays, results need no scaling, and weights above 1 are as precise as others. It depends on
  // the row's scores alone.
  float base_score[2] = {-INFINITY, -INFINITY};
  float sum[2] = {};  // of this thread's columns

  // Turns scores into weights; keep[r] is what older weights of row r are multiplied by.
  template <int kCount>
  __device__ void Weigh(float scale, float (&s)[kCount], float (&keep)[2]) {
    // Sums and maxima run in two chains per row: one warp alone has to hide the latency of its arithmetic.
    float tops[2][2], sums[2][2], base[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      tops[r][0] = base_score[r];
      tops[r][1] = s[2 * r];
    }
#pragma unroll
    for (int j = 0; j < kCount; j += 4) {
#pragma unroll
      for (int i = 0; i < 4; ++i) tops[i / 2][i % 2] = fmaxf(tops[i / 2][i % 2], s[j + i]);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = fmaxf(tops[r][0], tops[r][1]);
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
      if ((top - base_score[r]) * scale <= kMostExcess) top = base_score[r];
      const float seen = top == -INFINITY ? 0 : top;
      keep[r] = Exp2((base_score[r] - seen) * scale);  // exactly 1 where the base stays
      base[r] = seen * scale;
      base_score[r] = top;
      sums[r][0] = sum[r] * keep[r];
      sums[r][1] = 0;
    }
#pragma unroll
    for (int j = 0; j < kCount; j += 4) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[j + i] = Exp2(s[j + i] * scale - base[i / 2]);
        sums[i / 2][i % 2] += s[j + i];
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) sum[r] = sums[r][0] + sums[r][1];
  }
};

template <int kHeadDim, bool kScaled>
class Consumer {
  using L = Layout<kHeadDim, kScaled>;
  using Block = typename L::Block;
  static constexpr int kTile = L::kTile;
  // The product with V in pieces of at most 128 columns.
  static constexpr int kPieces = kHeadDim > 128 ? 2 : 1;
  static constexpr int kPieceColumns = kHeadDim / kPieces;

 public:
  __device__ Consumer(const PrefillMask<kTile>& mask, int number, unsigned char* q_shared, Barriers& barriers)
      : mask_(mask), number_(number), q_shared_(q_shared), barriers_(barriers) {}

  __device__ void Run(float scale) {
    if (number_ == 1) ArriveNamed(kTurnBarrier, kConsumers * kWarpgroup);  // consumer 0 has the first turn
    float s[kTile / 2], keep[2];
    uint32_t weights[kTile / 4];
    int tile = mask_.FirstTile();
    Wait(&barriers_.q_full, 0);
    Wait(&barriers_.k_full[0], 0);
    WgmmaFence();
    IssueScores(0, s);
    WgmmaCommit();
    WgmmaWait<0>();
    HoldRegisters(s);
    ScaleScores(0, s);
    Release(&barriers_.k_empty[0]);
    MaskScores(tile, s);
    rows_.Weigh(scale, s, keep);
    if constexpr (kScaled) Wait(&barriers_.v_full[0], 0);
    Round(0, s, weights);
    int i = 1;
    for (tile = mask_.NextTile(tile); tile < mask_.EndTile(); tile = mask_.NextTile(tile), ++i) {
      Step(i, tile, scale, s, weights);
    }
    const int last = (i - 1) % kStages;
    Wait(&barriers_.v_full[last], (i - 1) / kStages % 2);
    HoldRegisters(weights);
    HoldOut();
    WgmmaFence();
    IssueOut(last, weights);
    WgmmaCommit();
    WgmmaWait<0>();
    HoldOut();
  }

  // Tile number i: its scores and softmax, and the product of the weights of the one before with its V. That product is
  // meant to hide behind the softmax. nvcc 13.0 moves the wait for it ahead of the softmax all the same, so that only
  // the other warpgroup's products overlap: the tensor cores are busy 69 % of the time at head_dim 128, 91 % at 256.
  __device__ void Step(int i, int tile, float scale, float (&s)[kTile / 2], uint32_t (&weights)[kTile / 4]) {
    const int stage = i % kStages, before = (i - 1) % kStages;
    float keep[2];
    Wait(&barriers_.k_full[stage], i / kStages % 2);
    SyncNamed(kTurnBarrier + number_, kConsumers * kWarpgroup);
    HoldRegisters(weights);
    HoldOut();
    WgmmaFence();
    IssueScores(stage, s);
    WgmmaCommit();
    Wait(&barriers_.v_full[before], (i - 1) / kStages % 2);
    IssueOut(before, weights);
    WgmmaCommit();
    ArriveNamed(kTurnBarrier + 1 - number_, kConsumers * kWarpgroup);
    WgmmaWait<1>();
    HoldRegisters(s);
    ScaleScores(stage, s);
    Release(&barriers_.k_empty[stage]);
    MaskScores(tile, s);
    rows_.Weigh(scale, s, keep);
    HoldRegisters(s);
    HoldRegisters(keep);
    WgmmaWait<0>();
    HoldOut();
    HoldRegisters(weights);
    Release(&barriers_.v_empty[before]);
    if (__any_sync(0xffffffffu, keep[0] != 1 || keep[1] != 1)) Scale(keep);
    if constexpr (kScaled) Wait(&barriers_.v_full[stage], i / kStages % 2);  // with the tile come its scales
    Round(stage, s, weights);
  }

  // Through the shared memory of this consumer's queries, which nothing reads any more. `sinks`: as in
  // PrefillAttentionParams; `scale`: that of Run.
  __device__ void Write(const TensorMaps& maps, const float* sinks, float scale, int head, int first_query) {
    float inverse[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = rows_.sum[r];
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      if (sinks != nullptr) sum += Exp2(sinks[head] * kLog2E - rows_.base_score[r] * scale);
      inverse[r] = sum > 0 ? 1 / sum : 0;
    }
#pragma unroll
    for (int column = 0; column < kHeadDim; column += 8) {
      const int piece = column / kPieceColumns, j = column % kPieceColumns / 2;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = Row() + 8 * r;
        unsigned char* to = q_shared_ + column / Block::kColumns * L::kQBlockBytes + row * Block::kPitchBytes +
                            Block::Piece(row, column % Block::kColumns / 8) * 16 + Lane() % 4 * 4;
        *reinterpret_cast<uint32_t*>(to) =
            PackBf16(out_[piece][j + 2 * r] * inverse[r], out_[piece][j + 2 * r + 1] * inverse[r]);
      }
    }
    FenceSharedForCopies();
    SyncNamed(kWriteBarrier + number_, kWarpgroup);
    if (threadIdx.x % kWarpgroup != 0) return;
    for (int b = 0; b < L::kBlocks; ++b) {
      StoreTensor(&maps.out, b * Block::kColumns, head, first_query + number_ * kConsumerQueries,
                  q_shared_ + b * L::kQBlockBytes + number_ * kConsumerQueries * Block::kPitchBytes);
    }
    WaitForStores();
  }

 private:
  static __device__ int Lane() {
    return threadIdx.x % kWarp;
  }
  __device__ int Row() const {
    return number_ * kConsumerQueries + threadIdx.x % kWarpgroup / kWarp * 16 + Lane() / 4;
  }
  static __device__ uint32_t Address(const unsigned char* shared) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  }
  __device__ void Release(uint64_t* barrier) const {
    if (Lane() == 0) Arrive(barrier);
  }
  __device__ void HoldOut() {
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) HoldRegisters(out_[piece]);
  }

  __device__ void IssueScores(int stage, float (&s)[kTile / 2]) const {
    const uint32_t q = Address(q_shared_) + number_ * kConsumerQueries * Block::kPitchBytes;
    const uint32_t k = Address(L::Tile(q_shared_, stage, false));
#pragma unroll
    for (int d = 0; d < kHeadDim; d += 16) {
      const int block = d / Block::kColumns, inside = d % Block::kColumns * 2;
      WgmmaShared(s, Block::AlongRows(q + block * L::kQBlockBytes + inside),
                  Block::AlongRows(k + block * L::kTileBlockBytes + inside), d != 0);
    }
  }

  __device__ void IssueOut(int stage, const uint32_t (&weights)[kTile / 4]) {
    const uint32_t v = Address(L::Tile(q_shared_, stage, true));
#pragma unroll
    for (int key = 0; key < kTile; key += 16) {
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        const int block = piece * kPieceColumns / Block::kColumns;
        WgmmaRegisters(
            out_[piece], &weights[key / 4],
            Block::AcrossRows(v + block * L::kTileBlockBytes + key * Block::kPitchBytes, L::kTileBlockBytes));
      }
    }
  }

  __device__ void MaskScores(int tile, float (&s)[kTile / 2]) const {
    if (!mask_.IsPartial(tile, mask_.first + number_ * kConsumerQueries)) return;
#pragma unroll
    for (int i = 0; i < kTile / 2; ++i) {
      const int key = tile * kTile + i / 4 * 8 + Lane() % 4 * 2 + i % 2;
      if (!mask_.Sees(mask_.first + Row() + i / 2 % 2 * 8, key)) s[i] = -INFINITY;
    }
  }

  // Of this thread's columns 8 j + lane % 4 * 2 and the next.
  __device__ float2 ScalesOfColumns(int stage, bool is_v, int j) const {
    return *reinterpret_cast<const float2*>(L::Scales(q_shared_, stage, is_v) + 8 * j + Lane() % 4 * 2);
  }

  __device__ void ScaleScores(int stage, float (&s)[kTile / 2]) const {
    if constexpr (kScaled) {
#pragma unroll
      for (int j = 0; j < kTile / 8; ++j) {
        const float2 scales = ScalesOfColumns(stage, false, j);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          s[4 * j + 2 * r] *= scales.x;
          s[4 * j + 2 * r + 1] *= scales.y;
        }
      }
    }
  }

  __device__ void Round(int stage, const float (&s)[kTile / 2], uint32_t (&weights)[kTile / 4]) const {
#pragma unroll
    for (int i = 0; i < kTile / 4; ++i) {
      if constexpr (kScaled) {
        const float2 scales = ScalesOfColumns(stage, true, i / 2);
        weights[i] = PackBf16(s[2 * i] * scales.x, s[2 * i + 1] * scales.y);
      } else {
        weights[i] = PackBf16(s[2 * i], s[2 * i + 1]);
      }
    }
  }

  __device__ void Scale(const float (&keep)[2]) {
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
      for (int i = 0; i < kPieceColumns / 2; ++i) out_[piece][i] *= keep[i / 2 % 2];
    }
  }

  const PrefillMask<kTile>& mask_;
  const int number_;
  unsigned char* const q_shared_;
  Barriers& barriers_;
  RowState rows_;
  float out_[kPieces][kPieceColumns / 2] = {};
};

#endif

template <int kHeadDim, bool kScaled>
__global__ void __launch_bounds__(kThreads, 1)
    PrefillWgmmaKernel(PrefillAttentionParams p, WorkOrder order, const __grid_constant__ TensorMaps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using L = Layout<kHeadDim, kScaled>;
  extern __shared__ unsigned char shared[];
  __shared__ Barriers barriers;
  unsigned char* q_shared = shared + (L::kAlignment - __cvta_generic_to_shared(shared) % L::kAlignment) % L::kAlignment;
  if (threadIdx.x == 0) {
    InitBarrier(&barriers.q_full, 1);
    for (int stage = 0; stage < kStages; ++stage) {
      InitBarrier(&barriers.k_full[stage], 1);
      InitBarrier(&barriers.v_full[stage], 1);
      InitBarrier(&barriers.k_empty[stage], kConsumers * kWarpgroup / kWarp);
      InitBarrier(&barriers.v_empty[stage], kConsumers * kWarpgroup / kWarp);
    }
    FenceSharedForCopies();
  }
  __syncthreads();
  WaitForInputs();
  LetDependentsStart();
  int head, query_block;
  order.Find(blockIdx.x, &head, &query_block);
  const int kv_head = head / (p.num_query_heads / p.num_kv_heads);
  const int first_query = query_block * kQueries;
  const PrefillMask<L::kTile> mask(p, kv_head, first_query, kQueries);
  if (threadIdx.x < kWarpgroup) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (threadIdx.x == 0) {
      Produce<kHeadDim, kScaled>(p, maps, mask, head, kv_head, first_query, q_shared, barriers);
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    // The same in all lanes, which the compiler cannot see otherwise: descriptors stay in uniform registers.
    const int number = __shfl_sync(0xffffffffu, threadIdx.x / kWarpgroup - 1, 0);
    Consumer<kHeadDim, kScaled> consumer(mask, number, q_shared, barriers);
    consumer.Run(p.scale * kLog2E);
    consumer.Write(maps, p.sinks, p.scale * kLog2E, head, first_query);
  }
#else
  __trap();
#endif
}

}  // namespace winnow::device::prefill
