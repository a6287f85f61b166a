#pragma once
#include <cstdint>

#include "kernels/cuda/attention_products.cuh"
#include "kernels/cuda/attention_state.cuh"
#include "kernels/cuda/attention_stream.cuh"
#include "kernels/cuda/attention_units.cuh"

// Decode attention: a thread block takes units of lists, one after the other. One warp streams their rows through
// shared memory, in chunks of which each of the 4 others scores a quarter. Weights of the whole chunk then meet its V
// halves with these warps side by side along head_dim, so that no sums have to be exchanged. Bound by memory: while a
// chunk is worked on, the next ones are on their way, those of the next unit too.
namespace winnow::cuda {

struct DecodeLaunch {
  DecodeAttentionParams params;
  int level;       // UnitLevel
  bool clustered;  // the blocks of a list, max_units of them, are a cluster
  uint32_t num_stages;
  uint32_t num_lists;
  uint32_t max_units;       // of a list
  uint32_t* unit_counters;  // [2], of UnitTurns
  uint32_t* counters;       // [lists] units that have written their partial result
  float* partials;          // [lists][max_units][kPartialFloats]
};

__device__ inline float MaxOverQuads(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 4));
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 8));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 16));
}
__device__ inline float SumOverQuads(float x) {
  x += __shfl_xor_sync(~0u, x, 4);
  x += __shfl_xor_sync(~0u, x, 8);
  return x + __shfl_xor_sync(~0u, x, 16);
}

// The warps that work on the rows.
template <int kHeadDim, Dtype kDtype, int kTeams>
class DecodeBlock {
 public:
  using Shape = DecodeShape<kHeadDim, kDtype, kTeams>;
  using Shared = typename Shape::Shared;
  using Fragment = Fragments<kDtype>;
  using State = AttentionState<Shape::kWarpTiles>;
  using Exchange = typename Shape::Exchange;

  __device__ DecodeBlock(const DecodeLaunch& launch, Shared& shared)
      : launch_(launch),
        params_(launch.params),
        shared_(shared),
        cursor_{launch.num_stages},
        group_(params_.num_query_heads / params_.num_kv_heads) {}

  __device__ void Run(uint32_t list_index, uint32_t unit) {
    const AttentionList list = params_.lists[list_index];
    queries_.Load(params_.q + Query(list_index, 0) * kHeadDim, group_);
    const ListCut cut(list.count(), Shape::kChunkRows);
    const uint32_t units = cut.units(launch_.level);
    State result;
    if constexpr (Shape::kClustered) {
      if (unit < units) Attend(list.count(), cut, unit, result);
      MergeInCluster(list_index, result);
      return;
    }
    if (unit >= units && unit > 0) return;
    if (units > 0) Attend(list.count(), cut, unit, result);
    if (units > 1) {
      StorePartial(Partial(list_index, unit), result);
      if (!IsLast(list_index, units)) return;
      Merge(list_index, units, result);
    }
    Write(list_index, result);
  }

 private:
  __device__ static int Lane() { return threadIdx.x % 32; }
  __device__ static int Quad() { return Lane() / 4; }
  __device__ static int Pair() { return Lane() % 4; }
  __device__ static int Warp() { return threadIdx.x / 32; }
  __device__ static int FirstTile() { return Warp() * Shape::kWarpTiles; }
  __device__ static bool HasTile(int i) {
    return Shape::kValueTiles % Shape::kWarps == 0 || FirstTile() + i < Shape::kValueTiles;
  }
  __device__ static void Synchronize() { asm volatile("bar.sync 1, %0;" ::"n"(Shape::kWarps * 32) : "memory"); }

  // The unit's rows, folded as ListCut says.
  __device__ void Attend(uint32_t count, const ListCut& cut, uint32_t unit, State& result) {
    const uint32_t unit_chunks = SplitsOfUnit(launch_.level) * cut.split_chunks;
    const uint32_t begin = unit * unit_chunks, end = min(cut.chunks, begin + unit_chunks);
    queries_.Pack(params_.scale);
    State split;
    ListFold<State> fold(kSplit);
    uint32_t split_left = cut.split_chunks, splits_done = 0;
    const uint32_t end_row = min(count, end * Shape::kChunkRows);
    for (uint32_t chunk = begin; chunk < end; chunk += kTeams) {
      WaitForPhase(SharedAddress(&shared_.full[cursor_.stage]), cursor_.phase);
      const unsigned char* stage = shared_.stage(cursor_.stage);
      Exchange& exchange = shared_.exchange[turn_ ^= 1];
      Score(stage, end_row - chunk * Shape::kChunkRows, exchange);
      Synchronize();
#pragma unroll
      for (int team = 0; team < kTeams; ++team) {
        if (chunk + team >= end) break;
        Accumulate(exchange, SharedAddress(stage), team, split);
        if (--split_left == 0 && launch_.level != kSplit) {
          split_left = cut.split_chunks;
          fold.Take(split, splits_done++);
        }
      }
      __syncwarp();
      if (Lane() == 0) Arrive(SharedAddress(&shared_.empty[cursor_.stage]));
      cursor_.Next();
    }
    if (launch_.level == kSplit) {
      result = split;
      return;
    }
    if (split_left < cut.split_chunks) fold.Take(split, splits_done);  // the list's last
    result = fold.Finish();
  }

  // Scores this warp's rows; `left` counts the rows from the batch's first to the unit's last.
  __device__ void Score(const unsigned char* stage, uint32_t left, Exchange& exchange) {
    constexpr int kTiles = Shape::kWarpRowTiles;
    const uint32_t rows_at = SharedAddress(stage);
    const uint32_t first = Warp() * Shape::kWarpRows;
    float s[kTiles][4];  // [key: quad, quad + 8][head: 2 pair, 2 pair + 1]
    float value_scale[kTiles][2];
    float m[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      ScoreTile<kHeadDim, kDtype>(queries_, rows_at + (first + t * kTileRows) * Shape::kRowStride, s[t]);
#pragma unroll
      for (int key = 0; key < 2; ++key) {
        const uint32_t row = first + t * kTileRows + Quad() + 8 * key;
        float factor[2] = {queries_.factor[0], queries_.factor[1]};
        if constexpr (Fragment::kScaled) {
          const float2 scales = *reinterpret_cast<const float2*>(stage + Shape::kRowsBytes + row * 8);
          factor[0] *= scales.x;
          factor[1] *= scales.x;
          value_scale[t][key] = scales.y;
        }
#pragma unroll
        for (int head = 0; head < 2; ++head) {
          float& score = s[t][2 * key + head];
          score = row < left ? score * factor[head] : -INFINITY;
          m[head] = fmaxf(m[head], score);
        }
      }
    }
    m[0] = MaxOverQuads(m[0]);
    m[1] = MaxOverQuads(m[1]);
    float l[2] = {0, 0};
    const float base[2] = {BaseOf(m[0]), BaseOf(m[1])};
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[t][i] = Exp2(s[t][i] - base[i % 2]);
        l[i % 2] += s[t][i];
      }
    }
    l[0] = SumOverQuads(l[0]);
    l[1] = SumOverQuads(l[1]);
    if constexpr (Fragment::kScaled) {
      // The scales of V go into the weights, relative to the warp's largest: within f16 whatever they are.
      float largest = 0;
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        largest = fmaxf(largest, fmaxf(fabsf(value_scale[t][0]), fabsf(value_scale[t][1])));
      }
      largest = MaxOverQuads(largest);
      const float inverse = largest > 0 ? 1 / largest : 0.0f;
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) s[t][i] *= value_scale[t][i / 2] * inverse;
      }
      if (Lane() == 0) exchange.value_scale[Warp()] = largest;
    }
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      exchange.weights[Warp()][t][Lane()] =
          make_uint2(TransposeTile(Fragment::Pack(s[t][0], s[t][1])), TransposeTile(Fragment::Pack(s[t][2], s[t][3])));
    }
    if (Quad() == 0) {
      *reinterpret_cast<float2*>(&exchange.m[Warp()][2 * Pair()]) = make_float2(m[0], m[1]);
      *reinterpret_cast<float2*>(&exchange.l[Warp()][2 * Pair()]) = make_float2(l[0], l[1]);
    }
  }

  // Adds a team's chunk to the state.
  __device__ void Accumulate(const Exchange& exchange, uint32_t rows_at, int team, State& state) {
    const int first = team * kTeamWarps;
    float2 m[kTeamWarps];
    float new_m[2] = {state.m[0], state.m[1]};
#pragma unroll
    for (int w = 0; w < kTeamWarps; ++w) {
      m[w] = *reinterpret_cast<const float2*>(&exchange.m[first + w][2 * Pair()]);
      new_m[0] = fmaxf(new_m[0], m[w].x);
      new_m[1] = fmaxf(new_m[1], m[w].y);
    }
    state.Rescale(new_m);
#pragma unroll
    for (int w = 0; w < kTeamWarps; ++w) {
      float factor[2] = {Exp2(m[w].x - BaseOf(new_m[0])), Exp2(m[w].y - BaseOf(new_m[1]))};
      const float2 l = *reinterpret_cast<const float2*>(&exchange.l[first + w][2 * Pair()]);
      state.l[0] = __fmaf_rn(l.x, factor[0], state.l[0]);
      state.l[1] = __fmaf_rn(l.y, factor[1], state.l[1]);
      if constexpr (Fragment::kScaled) {
        factor[0] *= exchange.value_scale[first + w];
        factor[1] *= exchange.value_scale[first + w];
      }
      if (!HasTile(0)) continue;
      float c[Shape::kWarpTiles][4] = {};
      WeighValues<kHeadDim, kDtype, Shape::kWarpTiles>(rows_at + (first + w) * Shape::kWarpRows * Shape::kRowStride,
                                                       FirstTile(), exchange.weights[first + w], c);
#pragma unroll
      for (int i = 0; i < Shape::kWarpTiles; ++i) {
#pragma unroll
        for (int k = 0; k < 4; ++k) state.o[i][k] = __fmaf_rn(c[i][k], factor[k % 2], state.o[i][k]);
      }
    }
  }

  __device__ float* Partial(uint32_t list_index, uint32_t unit) const {
    return launch_.partials + (static_cast<size_t>(list_index) * launch_.max_units + unit) * Shape::kPartialFloats;
  }

  __device__ void StorePartial(float* partial, const State& state) const {
    if (2 * Pair() < group_) {
#pragma unroll
      for (int i = 0; i < Shape::kWarpTiles; ++i) {
        if (!HasTile(i)) break;
        reinterpret_cast<float4*>(partial)[(FirstTile() + i) * 32 + Lane()] =
            make_float4(state.o[i][0], state.o[i][1], state.o[i][2], state.o[i][3]);
      }
    }
    if (threadIdx.x < 4) {
      reinterpret_cast<float4*>(partial + Shape::kFragments * 4)[Pair()] =
          make_float4(state.m[0], state.l[0], state.m[1], state.l[1]);
    }
  }

  // Whether this block is the last of the list's to have written its partial result, which it then may read.
  __device__ bool IsLast(uint32_t list_index, uint32_t units) {
    Synchronize();
    if (threadIdx.x == 0) {
      asm volatile("fence.acq_rel.gpu;" ::: "memory");
      shared_.arrived = atomicAdd(launch_.counters + list_index, 1);
      asm volatile("fence.acq_rel.gpu;" ::: "memory");
    }
    Synchronize();
    const bool is_last = shared_.arrived + 1 == units;
    if (is_last && threadIdx.x == 0) launch_.counters[list_index] = 0;  // for the next launch
    return is_last;
  }

  __device__ void Merge(uint32_t list_index, uint32_t units, State& result) {
    ListFold<State> fold(launch_.level);
    constexpr int kBatch = Shape::kWarpTiles <= 2 ? 4 : 2;  // reads under way at once
    for (uint32_t first = 0; first < units; first += kBatch) {
      State parts[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (first + i < units) ReadPartial(Partial(list_index, first + i), parts[i]);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (first + i < units) fold.Take(parts[i], first + i);
      }
    }
    result = fold.Finish();
  }

  // As Merge, in a cluster that holds all units of the list: each block is sent its share of all units' elements,
  // merges and writes them. Blocks without a unit send empty parts.
  __device__ void MergeInCluster(uint32_t list_index, const State& state) {
    constexpr uint32_t kShare = Shape::kFragments / kClusterUnits;
    const uint32_t block = blockIdx.x;
    typename Shape::Inbox& inbox = shared_.inbox(launch_.num_stages);
    const uint32_t element = threadIdx.x % 4, fragment = block * kShare + threadIdx.x / 4;
    const int pair = fragment % 4, quad = fragment % 32 / 4, head = 2 * pair + element % 2;
    const size_t query = Query(list_index, head);
    const size_t out_at = query * kHeadDim + Fragment::ValueElement(fragment / 32, quad, element / 2);
    WaitForCluster();  // all have started
    if (2 * Pair() < group_) {
#pragma unroll
      for (int i = 0; i < Shape::kWarpTiles; ++i) {
        if (!HasTile(i)) break;
        const uint32_t fragment = (FirstTile() + i) * 32 + Lane();
        StoreInCluster(SharedAddress(&inbox.o[block * kShare + fragment % kShare]), fragment / kShare,
                       make_float4(state.o[i][0], state.o[i][1], state.o[i][2], state.o[i][3]));
      }
      if (Warp() * 8 + Quad() < kClusterUnits) {
        StoreInCluster(SharedAddress(&inbox.ml[block][Pair()]), Warp() * 8 + Quad(),
                       make_float4(state.m[0], state.l[0], state.m[1], state.l[1]));
      }
    }
    __syncwarp();
    ArriveInCluster();
    WaitForCluster();
    static_assert(kShare * 4 <= Shape::kWarps * 32);
    if (threadIdx.x >= kShare * 4 || head >= group_) return;
    ListFold<AttentionElement> fold(kSplit);
    const float* o = reinterpret_cast<const float*>(&inbox.o[threadIdx.x / 4]) + element;
    const float2* ml = reinterpret_cast<const float2*>(&inbox.ml[0][pair]) + element % 2;
#pragma unroll 1
    for (int unit = 0; unit < kClusterUnits; unit += 4) {
      AttentionElement parts[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        parts[i].o = o[(unit + i) * kShare * 4];
        parts[i].m = ml[(unit + i) * kMaxGroup].x;
        parts[i].l = ml[(unit + i) * kMaxGroup].y;
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) fold.Take(parts[i], i);
    }
    const AttentionElement list = fold.Finish();
    WriteElement(out_at, list.o, list.l);
    if (fragment < 32 && quad == 0 && element / 2 == 0) WriteLse(query, list.m, list.l);
  }

  __device__ void ReadPartial(const float* partial, State& state) {
    if (2 * Pair() >= group_) return;
#pragma unroll
    for (int i = 0; i < Shape::kWarpTiles; ++i) {
      if (!HasTile(i)) break;
      const float4 o = __ldcg(reinterpret_cast<const float4*>(partial) + (FirstTile() + i) * 32 + Lane());
      state.o[i][0] = o.x;
      state.o[i][1] = o.y;
      state.o[i][2] = o.z;
      state.o[i][3] = o.w;
    }
    const float4 ml = __ldcg(reinterpret_cast<const float4*>(partial + Shape::kFragments * 4) + Pair());
    state.m[0] = ml.x;
    state.l[0] = ml.y;
    state.m[1] = ml.z;
    state.l[1] = ml.w;
  }

  __device__ void Write(uint32_t list_index, const State& state) {
#pragma unroll
    for (int head = 0; head < 2; ++head) {
      const int in_group = 2 * Pair() + head;
      if (in_group >= group_) break;
      const size_t query = Query(list_index, in_group);
#pragma unroll
      for (int i = 0; i < Shape::kWarpTiles; ++i) {
        if (!HasTile(i)) break;
#pragma unroll
        for (int high = 0; high < 2; ++high) {
          WriteElement(query * kHeadDim + Fragment::ValueElement(FirstTile() + i, Quad(), high),
                       state.o[i][2 * high + head], state.l[head]);
        }
      }
      if (Warp() == 0 && Quad() == 0) WriteLse(query, state.m[head], state.l[head]);
    }
  }

  __device__ size_t Query(uint32_t list_index, int head) const {
    const int row = list_index / params_.num_kv_heads, kv_head = list_index % params_.num_kv_heads;
    return static_cast<size_t>(row) * params_.num_query_heads + kv_head * group_ + head;
  }
  __device__ void WriteElement(size_t at, float o, float l) const {
    const float value = l == 0 ? 0.0f : __fmaf_rn(o, __frcp_rn(l), 0.0f);  // no negative zero: Fold may lose it
    if (params_.out_dtype == Dtype::kF32) {
      static_cast<float*>(params_.out)[at] = value;
    } else {
      static_cast<__nv_bfloat16*>(params_.out)[at] = __float2bfloat16(value);
    }
  }
  __device__ void WriteLse(size_t query, float m, float l) const {
    if (params_.lse == nullptr) return;
    params_.lse[query] = l == 0 ? -INFINITY : (m + log2f(l)) * 0.6931471805599453f;
  }

  const DecodeLaunch& launch_;
  const DecodeAttentionParams& params_;
  Shared& shared_;
  StageCursor cursor_;
  int group_;
  QueryFragments<kHeadDim, kDtype> queries_;
  int turn_ = 0;
};

// Brings the rows of one unit.
template <int kHeadDim, Dtype kDtype, int kTeams>
__device__ inline void SendUnit(const DecodeLaunch& launch, RowStream<kHeadDim, kDtype, kTeams>& stream,
                                uint32_t list_index, uint32_t unit) {
  const AttentionList list = launch.params.lists[list_index];
  const ListCut cut(list.count(), ChunkRows(kDtype));
  const uint32_t unit_chunks = SplitsOfUnit(launch.level) * cut.split_chunks;
  const uint32_t begin = unit * unit_chunks, end = min(cut.chunks, begin + unit_chunks);
  if (begin >= end) return;
  const ListRows rows(launch.params, list);
  rows.TouchPages();
  stream.Send(rows, begin, end);
}

// Grid: blocks of a cluster along x and lists along y; or so many blocks that all run at once, for all units in turn.
template <int kHeadDim, Dtype kDtype, int kTeams>
__global__ void __launch_bounds__(DecodeShape<kHeadDim, kDtype, kTeams>::kThreads,
                                  DecodeShape<kHeadDim, kDtype, kTeams>::kBlocks)
    DecodeAttentionKernel(const __grid_constant__ DecodeLaunch launch) {
  using Shape = DecodeShape<kHeadDim, kDtype, kTeams>;
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  typename Shape::Shared& shared = *reinterpret_cast<typename Shape::Shared*>(shared_bytes);
  if constexpr (Shape::kClustered) ArriveInCluster();
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Shape::kMaxStages; ++stage) {
      InitBarrier(SharedAddress(&shared.full[stage]), kStreamWarps * 32);
      InitBarrier(SharedAddress(&shared.empty[stage]), Shape::kWarps);
    }
    shared.units.Init(Shape::kThreads / 32);
  }
  __syncthreads();
  const uint32_t first = blockIdx.y * launch.max_units + blockIdx.x;
  if (threadIdx.x == 0) PrefetchToL2(launch.params.lists + first / launch.max_units);
  if (threadIdx.x == 32) PrefetchToL2(launch.params.pages);
  if (threadIdx.x == 64) PrefetchToL2(launch.params.selected);
  WaitForKernelBefore();
  const bool streams = threadIdx.x / 32 >= Shape::kWarps;
  if constexpr (Shape::kClustered) {
    if (streams) {
      RowStream<kHeadDim, kDtype, kTeams> stream(launch.params, shared, launch.num_stages);
      SendUnit<kHeadDim, kDtype, kTeams>(launch, stream, blockIdx.y, blockIdx.x);
      __syncwarp();
      WaitForCluster();
      ArriveInCluster();
      WaitForCluster();
    } else {
      DecodeBlock<kHeadDim, kDtype, kTeams> block(launch, shared);
      block.Run(blockIdx.y, blockIdx.x);
    }
  } else {
    UnitTurns turns(shared.units, launch.unit_counters, launch.num_lists * launch.max_units,
                    threadIdx.x / 32 == Shape::kWarps);
    if (streams) {
      RowStream<kHeadDim, kDtype, kTeams> stream(launch.params, shared, launch.num_stages);
      for (; turns.HasUnit(); turns.Next()) {
        SendUnit<kHeadDim, kDtype, kTeams>(launch, stream, turns.unit() / launch.max_units,
                                           turns.unit() % launch.max_units);
      }
    } else {
      DecodeBlock<kHeadDim, kDtype, kTeams> block(launch, shared);
      for (; turns.HasUnit(); turns.Next()) block.Run(turns.unit() / launch.max_units, turns.unit() % launch.max_units);
    }
  }
}

}  // namespace winnow::cuda
