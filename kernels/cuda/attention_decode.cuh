#pragma once
#include <cstdint>

#include "kernels/cuda/attention_fragments.cuh"
#include "kernels/cuda/attention_lists.cuh"
#include "kernels/cuda/attention_state.cuh"

// Decode attention: a thread block streams the rows of one unit of one list through shared memory, in chunks of which
// each of its 4 warps fetches and scores a quarter. Weights of the whole chunk then meet its V halves with the warps
// side by side along head_dim, so that no sums have to be exchanged. Bound by memory: several chunks are on their way
// while one is worked on, and two or more blocks share a multiprocessor.
namespace winnow::cuda {

inline constexpr int kDecodeWarps = 4;
inline constexpr int kClusterUnits = 16;
inline constexpr int kTileRows = 16;
inline constexpr int kMaxGroup = 8;  // query heads of a kv head, the N side of products

template <int kHeadDim, Dtype kDtype>
struct DecodeShape {
  static constexpr int kHalfBytes = kDtype == Dtype::kI4 ? kHeadDim / 2 : kHeadDim * (kDtype == Dtype::kBf16 ? 2 : 1);
  static constexpr int kRowBytes = 2 * kHalfBytes;
  static constexpr int kRowPieces = kRowBytes / 16;
  static constexpr int kRowStride = kRowBytes + 16;  // an odd number of pieces: 8 rows' pieces lie in different banks
  static constexpr int kChunkRows = ChunkRows(kDtype);
  static constexpr int kWarpRows = kChunkRows / kDecodeWarps;
  static constexpr int kWarpRowTiles = kWarpRows / kTileRows;
  static constexpr int kRowsBytes = kChunkRows * kRowStride;
  static constexpr int kScaleBytes = kDtype == Dtype::kBf16 ? 0 : kChunkRows * 8;
  static constexpr int kStageBytes = kRowsBytes + kScaleBytes;
  static constexpr int kStages = kStageBytes * 4 <= 72 * 1024 ? 4 : 3;
  static constexpr int kValueTiles = kHeadDim / 16;
  static constexpr int kWarpTiles = (kValueTiles + kDecodeWarps - 1) / kDecodeWarps;
  static_assert(kRowPieces % 2 == 0 && kWarpRows * kRowPieces % 32 == 0);

  // What the warps tell each other of a chunk; two of them, in turn.
  struct Exchange {
    uint2 weights[kDecodeWarps][kWarpRowTiles][32];  // as the product with V takes them
    float m[kDecodeWarps][kMaxGroup];
    float l[kDecodeWarps][kMaxGroup];
    float value_scale[kDecodeWarps];
  };
  static constexpr int kSharedBytes = kStages * kStageBytes + 2 * sizeof(Exchange);
  // Thread blocks of a multiprocessor, which has 227 KiB for them, each taking 1 KiB more than it asks for.
  static constexpr int kBlocks = 227 * 1024 / (kSharedBytes + 1024) < 3 ? 227 * 1024 / (kSharedBytes + 1024) : 3;

  // A partial result in scratch: the fragments of one head_dim, then (m, l) of each head.
  static constexpr size_t kPartialFloats = kValueTiles * 32 * 4 + 2 * kMaxGroup;
};

__device__ inline uint32_t SharedAddress(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ inline float2 LoadShared(uint32_t address) {
  float2 value;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(value.x), "=f"(value.y) : "r"(address));
  return value;
}
__device__ inline void CopyAsync16(uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
}
__device__ inline void CopyAsync8(uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(valid ? 8 : 0) : "memory");
}
__device__ inline void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
__device__ inline void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
// Shared memory of another block of the cluster.
__device__ inline uint32_t ClusterAddress(uint32_t shared, uint32_t block) {
  uint32_t address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared), "r"(block));
  return address;
}
__device__ inline float LoadCluster(uint32_t address) {
  float value;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(address));
  return value;
}
// The kernel before in the stream has ended and what it wrote can be read; the kernel behind may start its blocks.
__device__ inline void WaitForKernelBefore() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

struct DecodeLaunch {
  DecodeAttentionParams params;
  int level;           // UnitLevel
  bool clustered;      // max_units is kClusterUnits, and the blocks of a list are a cluster
  uint32_t max_units;  // of a list: gridDim.x
  uint32_t* counters;  // [lists] units that have written their partial result
  float* partials;     // [lists][max_units][kPartialFloats]
};

// The group's queries as the N operand of all products along head_dim, and what scores have to be multiplied by.
template <int kHeadDim, Dtype kDtype>
struct QueryFragments {
  using Fragment = Fragments<kDtype>;
  static constexpr int kSteps = kHeadDim / 16;

  // Starts to read; `heads` are those of the group, q points to the first.
  __device__ void Load(const float* q, int heads) {
    const int quad = threadIdx.x % 32 / 4, pair = threadIdx.x % 4;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int element = Fragment::KeyElement(step, pair, i / 2, i % 2);
        value[step][i] = quad < heads ? __ldg(q + quad * kHeadDim + element) : 0.0f;
      }
    }
  }
  __device__ void Pack(float scale) {
    const int pair = threadIdx.x % 4;
    float unit = 1;  // f16 ends at 65504: queries are scaled by a power of two to stay below 2
    if constexpr (Fragment::kScaled) {
      float largest = 0;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int i = 0; i < 4; ++i) largest = fmaxf(largest, fabsf(value[step][i]));
      }
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
      const uint32_t exponent = min(max(__float_as_uint(largest) >> 23, 1u), 253u);
      unit = __uint_as_float(exponent << 23);
      const float inverse = __uint_as_float((254u - exponent) << 23);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int i = 0; i < 4; ++i) value[step][i] *= inverse;
      }
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      b[step][0] = Fragment::Pack(value[step][0], value[step][1]);
      b[step][1] = Fragment::Pack(value[step][2], value[step][3]);
    }
    const float to_log2 = scale * 1.4426950408889634f;
#pragma unroll
    for (int head = 0; head < 2; ++head) {
      factor[head] = to_log2 * (Fragment::kScaled ? __shfl_sync(~0u, unit, (2 * pair + head) * 4) : 1.0f);
    }
  }

  float value[kSteps][4];
  uint32_t b[kSteps][2];
  float factor[2];
};

// q . k of 16 rows at `tile` for 8 heads, as a product's accumulators.
template <int kHeadDim, Dtype kDtype>
__device__ inline void ScoreTile(const QueryFragments<kHeadDim, kDtype>& q, uint32_t tile, float (&c)[4]) {
  using Shape = DecodeShape<kHeadDim, kDtype>;
  using Fragment = Fragments<kDtype>;
  const int lane = threadIdx.x % 32;
  float even[4] = {}, odd[4] = {};  // two chains
  const uint32_t address = tile + (lane % 16) * Shape::kRowStride + (lane / 16) * 16;
  if constexpr (kDtype == Dtype::kBf16) {
#pragma unroll
    for (int step = 0; step < kHeadDim / 16; ++step) {
      uint32_t a[4];
      LoadTiles(a, address + 32 * step);
      Fragment::Multiply(step % 2 == 0 ? even : odd, a, q.b[step][0], q.b[step][1]);
    }
  } else if constexpr (kDtype == Dtype::kI4) {
#pragma unroll
    for (int step = 0; step < kHeadDim / 16; step += 2) {
      uint32_t words[2];
      LoadTiles(words, tile + (lane % 16) * Shape::kRowStride + 8 * step);
      uint32_t a[4];
      Fragment::WidenNibbles(words[0], a[0], a[2]);
      Fragment::WidenNibbles(words[1], a[1], a[3]);
      Fragment::Multiply(even, a, q.b[step][0], q.b[step][1]);
      Fragment::WidenNibbles(words[0] >> 8, a[0], a[2]);
      Fragment::WidenNibbles(words[1] >> 8, a[1], a[3]);
      Fragment::Multiply(odd, a, q.b[step + 1][0], q.b[step + 1][1]);
    }
  } else {
#pragma unroll
    for (int step = 0; step < kHeadDim / 16; step += 2) {
      uint32_t words[4];
      LoadTiles(words, address + 16 * step);
      uint32_t a[4];
      Fragment::WidenBytes(words[0], a[0], a[2]);
      Fragment::WidenBytes(words[1], a[1], a[3]);
      Fragment::Multiply(even, a, q.b[step][0], q.b[step][1]);
      Fragment::WidenBytes(words[2], a[0], a[2]);
      Fragment::WidenBytes(words[3], a[1], a[3]);
      Fragment::Multiply(odd, a, q.b[step + 1][0], q.b[step + 1][1]);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) c[i] = even[i] + odd[i];
}

// Products of the weights of one warp's rows of the chunk with their V halves: adds those of head_dim tile `tile` and
// on to c. The rows begin at `rows`, their weights at `weights`.
template <int kHeadDim, Dtype kDtype, int kTiles>
__device__ inline void WeighValues(uint32_t rows, int tile, const uint2 (*weights)[32], float (&c)[kTiles][4]) {
  using Shape = DecodeShape<kHeadDim, kDtype>;
  using Fragment = Fragments<kDtype>;
  const int lane = threadIdx.x % 32;
  uint2 w[Shape::kWarpRowTiles];
#pragma unroll
  for (int t = 0; t < Shape::kWarpRowTiles; ++t) w[t] = weights[t][lane];
  if constexpr (kDtype == Dtype::kBf16) {
    const uint32_t at = rows + (lane % 8 + lane / 16 * 8) * Shape::kRowStride + Shape::kHalfBytes + lane / 8 % 2 * 16;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      if (tile + i >= Shape::kValueTiles) break;
#pragma unroll
      for (int t = 0; t < Shape::kWarpRowTiles; ++t) {
        uint32_t a[4];
        LoadTilesTransposed(a, at + t * kTileRows * Shape::kRowStride + 32 * (tile + i));
        Fragment::Multiply(c[i], a, w[t].x, w[t].y);
      }
    }
  } else {
    static_assert(Shape::kWarpRowTiles == 2);
    constexpr int kPieceTiles = kDtype == Dtype::kI4 ? 2 : 1;  // of head_dim, in 16 bytes
    const uint32_t at = rows + lane * Shape::kRowStride + Shape::kHalfBytes;
#pragma unroll
    for (int i = 0; i < kTiles; i += kPieceTiles) {
      if (tile + i >= Shape::kValueTiles) break;
      uint32_t words[4];
      LoadTilesTransposed(words, at + (tile + i) / kPieceTiles * 16);
#pragma unroll
      for (int j = 0; j < kPieceTiles && i + j < kTiles; ++j) {
#pragma unroll
        for (int t = 0; t < 2; ++t) {
          uint32_t a[4];
          if constexpr (kDtype == Dtype::kI4) {
            const int shift = (tile + i + j) % 2 * 8;
            Fragment::WidenNibbles(words[2 * t] >> shift, a[0], a[1]);
            Fragment::WidenNibbles(words[2 * t + 1] >> shift, a[2], a[3]);
          } else {
            Fragment::WidenBytes(words[2 * t], a[0], a[1]);
            Fragment::WidenBytes(words[2 * t + 1], a[2], a[3]);
          }
          Fragment::Multiply(c[i + j], a, w[t].x, w[t].y);
        }
      }
    }
  }
}

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

// Brings chunks of one list's rows into shared memory, looking up where they lie one and two chunks ahead. Each warp
// fetches its rows of every chunk; lane r, and with 16 rows lane r + 16, knows of row r.
template <int kHeadDim, Dtype kDtype>
class ChunkStream {
 public:
  using Shape = DecodeShape<kHeadDim, kDtype>;

  __device__ ChunkStream(const DecodeAttentionParams& params, const ListRows& rows, uint32_t shared, uint32_t begin,
                         uint32_t end)
      : pool_(static_cast<const char*>(params.slot_pool) + threadIdx.x % 32 % Shape::kRowPieces * 16),
        scales_(static_cast<const float2*>(params.kv_scales)),
        rows_(rows),
        shared_(shared),
        next_(begin),
        end_(end) {
    asm volatile("" : "+l"(pool_));  // one multiply-add gives an address
  }

  // Starts the first kStages chunks.
  __device__ void Start() {
    constexpr int kAhead = Shape::kStages;
    ListRows::Local local[kAhead + 2];
#pragma unroll
    for (int i = 0; i < kAhead + 2; ++i) local[i] = rows_.Find(Row(next_ + i));
    ListRows::Page page[kAhead + 1];
#pragma unroll
    for (int i = 0; i < kAhead + 1; ++i) page[i] = rows_.FindPage(local[i]);
    local_ = local[kAhead + 1];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) Fetch(page[i].slot());
    page_ = page[kAhead];
  }

  // Starts the next chunk, into the stage that the one kStages before had.
  __device__ void Advance() {
    Fetch(page_.slot());
    page_ = rows_.FindPage(local_);
    local_ = rows_.Find(Row(next_ + 1));
  }

 private:
  __device__ static uint32_t Row(uint32_t chunk) {
    return chunk * Shape::kChunkRows + threadIdx.x / 32 * Shape::kWarpRows + threadIdx.x % Shape::kWarpRows;
  }

  template <bool kAllValid>
  __device__ void FetchRows(uint32_t slot, uint32_t to, uint32_t left) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < Shape::kWarpRows * Shape::kRowPieces / 32; ++i) {
      const int piece = i * 32 + lane, row = piece / Shape::kRowPieces, column = piece % Shape::kRowPieces;
      const uint32_t from = __shfl_sync(~0u, slot, row);
      const char* at = pool_ + static_cast<size_t>(from) * Shape::kRowBytes;  // of this lane's column where it stays
      if constexpr (32 % Shape::kRowPieces != 0 && Shape::kRowPieces % 32 != 0) {
        at += (column - lane % Shape::kRowPieces) * 16;
      } else if constexpr (Shape::kRowPieces > 32) {
        at += i % (Shape::kRowPieces / 32) * 512;
      }
      CopyAsync16(to + row * Shape::kRowStride + column * 16, at, kAllValid || row < left);
    }
    if constexpr (Fragments<kDtype>::kScaled) {
      CopyAsync8(shared_ + stage_ * Shape::kStageBytes + Shape::kRowsBytes + threadIdx.x * 8, scales_ + slot,
                 kAllValid || lane < left);
    }
  }

  __device__ void Fetch(uint32_t slot) {
    if (next_ < end_) {
      const uint32_t first = threadIdx.x / 32 * Shape::kWarpRows;
      const uint32_t to = shared_ + stage_ * Shape::kStageBytes + first * Shape::kRowStride;
      const uint32_t left =
          rows_.count - min(rows_.count, next_ * Shape::kChunkRows + first);  // of this warp and behind
      if (left >= Shape::kWarpRows) {
        FetchRows<true>(slot, to, left);
      } else {
        FetchRows<false>(slot, to, left);
      }
    }
    CommitCopies();
    ++next_;
    stage_ = stage_ + 1 == Shape::kStages ? 0 : stage_ + 1;
  }

  const char* pool_;
  const float2* scales_;
  const ListRows& rows_;
  uint32_t shared_;
  uint32_t next_, end_;  // chunks
  uint32_t stage_ = 0;
  ListRows::Page page_;    // of chunk next_
  ListRows::Local local_;  // of the one behind it
};

template <int kHeadDim, Dtype kDtype>
class DecodeBlock {
 public:
  using Shape = DecodeShape<kHeadDim, kDtype>;
  using Fragment = Fragments<kDtype>;
  using State = AttentionState<Shape::kWarpTiles>;
  using Exchange = typename Shape::Exchange;

  __device__ DecodeBlock(const DecodeLaunch& launch, unsigned char* shared)
      : launch_(launch),
        params_(launch.params),
        shared_(shared),
        exchange_(reinterpret_cast<Exchange*>(shared + Shape::kStages * Shape::kStageBytes)),
        group_(params_.num_query_heads / params_.num_kv_heads) {}

  __device__ void Run() {
    const uint32_t list_index = blockIdx.y, unit = blockIdx.x;
    queries_.Load(params_.q + Query(list_index, 0) * kHeadDim, group_);
    const AttentionList list = params_.lists[list_index];
    const ListCut cut(list.count(), Shape::kChunkRows);
    const uint32_t units = cut.units(launch_.level);
    State result;
    if (launch_.clustered) {
      if (unit < units) Attend(list, cut, unit, result);
      MergeInCluster(list_index, result);
      return;
    }
    if (unit >= units && unit > 0) return;
    if (units > 0) Attend(list, cut, unit, result);
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

  // The unit's rows, folded as ListCut says.
  __device__ void Attend(const AttentionList& list, const ListCut& cut, uint32_t unit, State& result) {
    const uint32_t unit_chunks = SplitsOfUnit(launch_.level) * cut.split_chunks;
    const uint32_t begin = unit * unit_chunks, end = min(cut.chunks, begin + unit_chunks);
    const ListRows rows(params_, list);
    rows.TouchPages();
    const uint32_t shared = SharedAddress(shared_);
    ChunkStream<kHeadDim, kDtype> stream(params_, rows, shared, begin, end);
    stream.Start();
    queries_.Pack(params_.scale);

    State split;
    ListFold<State> fold(kSplit);
    uint32_t split_left = cut.split_chunks, splits_done = 0, stage = 0;
    for (uint32_t chunk = begin; chunk < end; ++chunk) {
      if (chunk == begin) {
        WaitForCopies<Shape::kStages - 1>();
      } else {
        WaitForCopies<Shape::kStages - 2>();
      }
      __syncwarp();
      const uint32_t rows_at = shared + stage * Shape::kStageBytes;
      Exchange& exchange = exchange_[chunk % 2];
      Score(rows_at, list.count() - chunk * Shape::kChunkRows, exchange);
      __syncthreads();  // the whole chunk is here, scored, and the one before has been used
      if (chunk != begin) stream.Advance();
      Accumulate(exchange, rows_at, split);
      stage = stage + 1 == Shape::kStages ? 0 : stage + 1;
      if (--split_left == 0 && launch_.level != kSplit) {
        split_left = cut.split_chunks;
        fold.Take(split, splits_done++);
      }
    }
    WaitForCopies<0>();
    if (launch_.level == kSplit) {
      result = split;
      return;
    }
    if (split_left < cut.split_chunks) fold.Take(split, splits_done);  // the list's last
    result = fold.Finish();
  }

  // Scores this warp's rows; `left` counts the rows from the chunk's first to the list's last.
  __device__ void Score(uint32_t rows_at, uint32_t left, Exchange& exchange) {
    constexpr int kTiles = Shape::kWarpRowTiles;
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
          const float2 scales = LoadShared(rows_at + Shape::kRowsBytes + row * 8);
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

  // Adds the chunk to the state.
  __device__ void Accumulate(const Exchange& exchange, uint32_t rows_at, State& state) {
    float2 m[kDecodeWarps];
    float new_m[2] = {state.m[0], state.m[1]};
#pragma unroll
    for (int w = 0; w < kDecodeWarps; ++w) {
      m[w] = *reinterpret_cast<const float2*>(&exchange.m[w][2 * Pair()]);
      new_m[0] = fmaxf(new_m[0], m[w].x);
      new_m[1] = fmaxf(new_m[1], m[w].y);
    }
    state.Rescale(new_m);
#pragma unroll
    for (int w = 0; w < kDecodeWarps; ++w) {
      float factor[2] = {Exp2(m[w].x - BaseOf(new_m[0])), Exp2(m[w].y - BaseOf(new_m[1]))};
      const float2 l = *reinterpret_cast<const float2*>(&exchange.l[w][2 * Pair()]);
      state.l[0] = __fmaf_rn(l.x, factor[0], state.l[0]);
      state.l[1] = __fmaf_rn(l.y, factor[1], state.l[1]);
      if constexpr (Fragment::kScaled) {
        factor[0] *= exchange.value_scale[w];
        factor[1] *= exchange.value_scale[w];
      }
      float c[Shape::kWarpTiles][4] = {};
      WeighValues<kHeadDim, kDtype, Shape::kWarpTiles>(rows_at + w * Shape::kWarpRows * Shape::kRowStride, FirstTile(),
                                                       exchange.weights[w], c);
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
        if (FirstTile() + i >= Shape::kValueTiles) break;
        reinterpret_cast<float4*>(partial)[(FirstTile() + i) * 32 + Lane()] =
            make_float4(state.o[i][0], state.o[i][1], state.o[i][2], state.o[i][3]);
      }
    }
    if (threadIdx.x < 4) {
      reinterpret_cast<float4*>(partial + Shape::kValueTiles * 128)[Pair()] =
          make_float4(state.m[0], state.l[0], state.m[1], state.l[1]);
    }
  }

  // Whether this block is the last of the list's to have written its partial result, which it then may read.
  __device__ bool IsLast(uint32_t list_index, uint32_t units) {
    uint32_t& arrived = *reinterpret_cast<uint32_t*>(shared_);  // no rows are on their way any more
    __syncthreads();
    if (threadIdx.x == 0) {
      __threadfence();
      arrived = atomicAdd(launch_.counters + list_index, 1);
      __threadfence();
    }
    __syncthreads();
    if (arrived + 1 != units) return false;
    if (threadIdx.x == 0) launch_.counters[list_index] = 0;  // for the next launch
    return true;
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

  // As Merge, through the shared memory of a cluster that holds all units of the list: each block merges and writes its
  // share of the elements. Blocks without a unit give empty parts.
  __device__ void MergeInCluster(uint32_t list_index, const State& state) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    __syncthreads();  // rows in shared memory have been used
    float* partial = reinterpret_cast<float*>(shared_);
    StorePartial(partial, state);
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
    constexpr uint32_t kShare = Shape::kValueTiles * 128 / kClusterUnits;
    static_assert(kShare <= kDecodeWarps * 32 && Shape::kValueTiles * 128 % kClusterUnits == 0);
    const uint32_t element = blockIdx.x * kShare + threadIdx.x, fragment = element / 4;
    const int pair = fragment % 4, quad = fragment % 32 / 4, high = element % 4 / 2, head = 2 * pair + element % 2;
    const bool mine = threadIdx.x < kShare && head < group_;
    AttentionElement list;
    if (mine) {
      AttentionElement parts[kClusterUnits];
#pragma unroll
      for (int unit = 0; unit < kClusterUnits; ++unit) {
        const uint32_t at = ClusterAddress(SharedAddress(partial), unit);
        parts[unit].o = LoadCluster(at + element * 4);
        parts[unit].m = LoadCluster(at + (Shape::kValueTiles * 128 + 2 * head) * 4);
        parts[unit].l = LoadCluster(at + (Shape::kValueTiles * 128 + 2 * head + 1) * 4);
      }
      ListFold<AttentionElement> fold(kSplit);
#pragma unroll
      for (int unit = 0; unit < kClusterUnits; ++unit) fold.Take(parts[unit], unit);
      list = fold.Finish();
    }
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    if (mine) {
      WriteElement(list_index, head, Fragment::ValueElement(fragment / 32, quad, high), list.o, list.l);
      if (element < 128 && quad == 0 && high == 0) WriteLse(list_index, head, list.m, list.l);
    }
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");  // others may still read this block's part
#endif
  }
  __device__ void ReadPartial(const float* partial, State& state) {
    if (2 * Pair() >= group_) return;
#pragma unroll
    for (int i = 0; i < Shape::kWarpTiles; ++i) {
      if (FirstTile() + i >= Shape::kValueTiles) break;
      const float4 o = __ldcg(reinterpret_cast<const float4*>(partial) + (FirstTile() + i) * 32 + Lane());
      state.o[i][0] = o.x;
      state.o[i][1] = o.y;
      state.o[i][2] = o.z;
      state.o[i][3] = o.w;
    }
    const float4 ml = __ldcg(reinterpret_cast<const float4*>(partial + Shape::kValueTiles * 128) + Pair());
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
#pragma unroll
      for (int i = 0; i < Shape::kWarpTiles; ++i) {
        if (FirstTile() + i >= Shape::kValueTiles) break;
#pragma unroll
        for (int high = 0; high < 2; ++high) {
          WriteElement(list_index, in_group, Fragment::ValueElement(FirstTile() + i, Quad(), high),
                       state.o[i][2 * high + head], state.l[head]);
        }
      }
      if (Warp() == 0 && Quad() == 0) WriteLse(list_index, in_group, state.m[head], state.l[head]);
    }
  }

  __device__ size_t Query(uint32_t list_index, int head) const {
    const int row = list_index / params_.num_kv_heads, kv_head = list_index % params_.num_kv_heads;
    return static_cast<size_t>(row) * params_.num_query_heads + kv_head * group_ + head;
  }
  __device__ void WriteElement(uint32_t list_index, int head, int element, float o, float l) const {
    const size_t at = Query(list_index, head) * kHeadDim + element;
    const float value = l == 0 ? 0.0f : __fmaf_rn(o, __frcp_rn(l), 0.0f);  // no negative zero: Fold may lose it
    if (params_.out_dtype == Dtype::kF32) {
      static_cast<float*>(params_.out)[at] = value;
    } else {
      static_cast<__nv_bfloat16*>(params_.out)[at] = __float2bfloat16(value);
    }
  }
  __device__ void WriteLse(uint32_t list_index, int head, float m, float l) const {
    if (params_.lse == nullptr) return;
    params_.lse[Query(list_index, head)] = l == 0 ? -INFINITY : (m + log2f(l)) * 0.6931471805599453f;
  }

  const DecodeLaunch& launch_;
  const DecodeAttentionParams& params_;
  unsigned char* shared_;
  Exchange* exchange_;
  int group_;
  QueryFragments<kHeadDim, kDtype> queries_;
};

template <int kHeadDim, Dtype kDtype>
__global__ void __launch_bounds__(kDecodeWarps * 32, DecodeShape<kHeadDim, kDtype>::kBlocks)
    DecodeAttentionKernel(const __grid_constant__ DecodeLaunch launch) {
  extern __shared__ __align__(16) unsigned char shared[];
  WaitForKernelBefore();
  DecodeBlock<kHeadDim, kDtype>(launch, shared).Run();
}

}  // namespace winnow::cuda
