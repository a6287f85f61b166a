#pragma once
#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/attention/attention_chunk.cuh"

namespace winnow::device {

struct DecodeLaunch {
  CUtensorMap slots;  // the pool's rows in bytes, for RowStream
  DecodeAttentionParams params;
  int level;       // UnitLevel
  bool clustered;  // the blocks of a list, max_units of them, are a cluster
  uint32_t num_stages;
  uint32_t num_lists;
  uint32_t max_units;       // of a list
  uint32_t* unit_counters;  // [2], of UnitTurns
  uint32_t* wait_ended;     // of RemoteFlags
  uint32_t* counters;       // [lists] units that have written their partial result
  float* partials;          // [lists][max_units][kPartialFloats]
};

// What becomes of a unit's state: the list's result, where the list is one unit; else a part that is merged with those
// of the other units, by the block that is last to write its own, or by all blocks of a cluster.
template <int kHeadDim, Dtype kDtype>
class PartMerger : Worker<kHeadDim, kDtype> {
 public:
  using Base = Worker<kHeadDim, kDtype>;
  using Shape = typename Base::Shape;
  using Shared = typename Shape::Shared;
  using Fragment = typename Base::Fragment;
  using State = typename Base::State;
  using Base::FirstTile, Base::HasTile, Base::Lane, Base::Pair, Base::Quad, Base::Synchronize, Base::Warp;

  __device__ PartMerger(const DecodeLaunch& launch, Shared& shared, int group)
      : launch_(launch), params_(launch.params), shared_(shared), group_(group) {}

  __device__ void Finish(uint32_t list_index, uint32_t unit, uint32_t units, State& state) {
    if (units > 1) {
      StorePartial(Partial(list_index, unit), state);
      if (!IsLast(list_index, units)) return;
      Merge(list_index, units, state);
    }
    Write(list_index, state);
  }

  // As Finish, in a cluster that holds all units of the list: each block is sent its share of all units' elements,
  // merges and writes them. Blocks without a unit send empty parts.
  __device__ void FinishInCluster(uint32_t list_index, const State& state) {
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
    static_assert(kShare * 4 <= kWorkWarps * 32);
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
    const float l = WithSink(list_index, head, list.m, list.l);
    WriteElement(out_at, list.o, l);
    if (fragment < 32 && quad == 0 && element / 2 == 0) WriteLse(query, list.m, l);
  }

 private:
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
      asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
                   : "=r"(shared_.arrived)
                   : "l"(launch_.counters + list_index)
                   : "memory");
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
      const float l = WithSink(list_index, in_group, state.m[head], state.l[head]);
#pragma unroll
      for (int i = 0; i < Shape::kWarpTiles; ++i) {
        if (!HasTile(i)) break;
#pragma unroll
        for (int high = 0; high < 2; ++high) {
          WriteElement(query * kHeadDim + Fragment::ValueElement(FirstTile() + i, Quad(), high),
                       state.o[i][2 * high + head], l);
        }
      }
      if (Warp() == 0 && Quad() == 0) WriteLse(query, state.m[head], l);
    }
  }

  __device__ size_t Query(uint32_t list_index, int head) const {
    return static_cast<size_t>(list_index) * group_ + head;
  }
  // l with the head's sink in it; an empty list stays empty.
  __device__ float WithSink(uint32_t list_index, int head, float m, float l) const {
    if (params_.sinks == nullptr || l == 0) return l;
    const float sink = params_.sinks[list_index % params_.num_kv_heads * group_ + head] * 1.4426950408889634f;
    return __fadd_rn(l, Exp2(sink - m));
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
  int group_;
};

}  // namespace winnow::device
