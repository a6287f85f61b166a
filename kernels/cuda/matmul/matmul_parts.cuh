#pragma once
#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/collective/all_reduce_terms.cuh"
#include "kernels/cuda/matmul/matmul_fill.cuh"
#include "kernels/cuda/matmul/matmul_forms.cuh"

// What becomes of the sums of a tile: the blocks that share it share out its strips, and each leaves its sums of other
// strips for those who finish them. For all but the last of them the tile is the last thing to do.
//
// A word of a part that has not come yet is +0, so that words tell of themselves and nobody needs a flag or a fence. A
// sum of +0 is left as -0, which adds up to the same. Who takes a part leaves zeros for the next launch.
//
// Parts are left without waiting for anybody. A block waits for the blocks of its tile alone: those before it run or
// have ended, as blocks are started in order, and those behind it are there or come as places become free, as no more
// blocks of a tile wait than it has strips. So a GPU must have room for nine blocks.
namespace winnow::device {

// Of the output features of a strip and kRows rows, as mma leaves them in the lanes of a warp.
template <int kRows>
struct StripSums {
  float values[kRows / 8][4];
};

// A lane's pieces lie 32 float4 apart: kRows / 8 of them. A block leaves parts of two tiles at most: of one that it
// begins, and of one that it does not.
template <int kRows, typename Form>
__device__ inline float4* PartOf(float4* parts, int block, bool begins_tile, int strip) {
  constexpr int kPieces = kRows / 8;
  const int64_t place = 2 * int64_t{block} + begins_tile;
  return parts + (place * Form::kMultiplyWarps + strip) * (kPieces * 32) + threadIdx.x % 32;
}

__device__ inline void StorePiece(float4* to, float4 v) {
  asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
               : "memory");
}
__device__ inline float NeverPlusZero(float x) {
  return __float_as_uint(x) == 0 ? -0.0f : x;
}
__device__ inline bool HasCome(float4 v) {
  return __float_as_uint(v.x) != 0 && __float_as_uint(v.y) != 0 && __float_as_uint(v.z) != 0 &&
         __float_as_uint(v.w) != 0;
}

template <int kRows>
__device__ inline void LeavePart(float4* part, const StripSums<kRows>& sums) {
#pragma unroll
  for (int column = 0; column < kRows / 8; ++column) {
    const float(&v)[4] = sums.values[column];
    StorePiece(part + column * 32,
               make_float4(NeverPlusZero(v[0]), NeverPlusZero(v[1]), NeverPlusZero(v[2]), NeverPlusZero(v[3])));
  }
}

// A piece from where others left it, through the L2, to shared memory; takes no registers while it is under way.
__device__ inline void FetchPiece(uint32_t to, const float4* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ inline void FetchWord(uint32_t to, const float* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
__device__ inline void AwaitPieces() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}
__device__ inline float4 LoadFetched(uint32_t from) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(from)
               : "memory");
  return v;
}
__device__ inline float LoadFetchedWord(uint32_t from) {
  float v;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(from) : "memory");
  return v;
}
__device__ inline void HoldPiece(uint32_t to, const float (&v)[4]) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3])
               : "memory");
}

// What a warp does in the end with its strip of the tile that its block ends with, where others have a share in it: the
// blocks first to last. Worked out before there is anything to multiply, and kept in shared memory meanwhile.
struct alignas(16) TileEnd {
  int first, last;
  // Whoever finishes the strip has places of a part's size for it in the ring, in which nothing is under way any more:
  // of what y is added to, of this block's own sums, and of num_parts parts of others. Else num_parts is 0.
  int num_parts, first_place;

  __device__ bool is_shared() const { return first < last; }
  __device__ bool finishes() const { return num_parts > 0; }

  // ring_places: parts that find room in the ring. Of the blocks whose last tile this is, all but `last`, the first
  // kFinishers share out its strips: few, where there is little to add, as multiprocessors that others leave read for
  // the next kernel.
  template <typename Form, int kFinishers>
  __device__ static TileEnd Of(const MatmulCuts& cuts, int strip, int ring_places) {
    constexpr int kStrips = Form::kMultiplyWarps;
    const int own = blockIdx.x, tile = (UnitsOf(cuts, own).end - 1) / cuts.num_chunks;
    TileEnd end = {BlockOf(cuts, tile * cuts.num_chunks), BlockOf(cuts, (tile + 1) * cuts.num_chunks - 1), 0, 0};
    if (!end.is_shared()) return end;
    const int finishers = min(end.last - end.first, kFinishers), at = own - end.first;
    const int first_strip = (at * kStrips + finishers - 1) / finishers;
    const int strips = min(((at + 1) * kStrips + finishers - 1) / finishers, kStrips) - first_strip;
    if (at >= finishers || strip < first_strip || strip >= first_strip + strips) return end;
    end.num_parts = ring_places / strips - 2;
    end.first_place = (strip - first_strip) * (end.num_parts + 2);
    return end;
  }
};

// A lane's words of the places that TileEnd speaks of.
template <int kRows, typename Form>
class FinishPlaces {
 public:
  static constexpr int kPieceBytes = 32 * 16, kPlaceBytes = kRows / 8 * kPieceBytes;
  static constexpr int kPlaces = DecodeLayout<kRows, Form>::kScalesAt / kPlaceBytes;
  static_assert(kPlaces >= 3 * Form::kMultiplyWarps);

  __device__ FinishPlaces(const TileEnd& end, uint32_t ring)
      : first_(ring + end.first_place * kPlaceBytes + threadIdx.x % 32 * 16) {}
  __device__ uint32_t OldWord(int word) const { return first_ - threadIdx.x % 32 * 12 + word * 128; }
  __device__ uint32_t OwnPiece(int piece) const { return first_ + kPlaceBytes + piece * kPieceBytes; }
  __device__ uint32_t PartPiece(int part, int piece) const {
    return first_ + (2 + part) * kPlaceBytes + piece * kPieceBytes;
  }

 private:
  const uint32_t first_;
};

// Adds the parts of the other blocks that share the tile to this one's `sums`, in the order of blocks, as they come.
template <int kRows, typename Form>
__device__ inline void TakeParts(float4* parts, const TileEnd& tile_end, int strip,
                                 const FinishPlaces<kRows, Form>& places, StripSums<kRows>& sums) {
  constexpr int kPieces = kRows / 8;
  const int own = blockIdx.x;
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) HoldPiece(places.OwnPiece(piece), sums.values[piece]);
  for (int begin = tile_end.first; begin <= tile_end.last; begin += tile_end.num_parts) {
    const int end = min(begin + tile_end.num_parts, tile_end.last + 1);
    bool all;
    do {
      for (int block = begin; block < end; ++block) {
        if (block == own) continue;
        const float4* const part = PartOf<kRows, Form>(parts, block, block == tile_end.first, strip);
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece) {
          FetchPiece(places.PartPiece(block - begin, piece), part + piece * 32);
        }
      }
      AwaitPieces();
      all = true;
      for (int block = begin; block < end; ++block) {
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece) {
          all = all && (block == own || HasCome(LoadFetched(places.PartPiece(block - begin, piece))));
        }
      }
    } while (!all);
    for (int block = begin; block < end; ++block) {
      float4* const part = PartOf<kRows, Form>(parts, block, block == tile_end.first, strip);
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        const float4 v = LoadFetched(block == own ? places.OwnPiece(piece) : places.PartPiece(block - begin, piece));
        if (block != own) StorePiece(part + piece * 32, make_float4(0, 0, 0, 0));
        float(&sum)[4] = sums.values[piece];
        if (block == tile_end.first) {
          sum[0] = v.x, sum[1] = v.y, sum[2] = v.z, sum[3] = v.w;
        } else {
          sum[0] += v.x, sum[1] += v.y, sum[2] += v.z, sum[3] += v.w;
        }
      }
    }
  }
}

// Where a strip of y goes. Scales are under way from the start.
template <int kRows, typename Form>
class StripOutput {
 public:
  __device__ StripOutput(const DecodeMatmulArgs& args, int tile, int strip)
      : args_(args), first_out_(tile * Form::kTileOut + strip * kStripOut + threadIdx.x % 32 / 4) {
    if (args.scales != nullptr) {
      ForEachOut([&](int i, int out) { scale_[i] = args.scales[out]; });
    }
  }

  // Fetches what y is added to. A word that was stored would hold up the reading of the next one.
  __device__ void FetchOld(const FinishPlaces<kRows, Form>& places) const {
    if (!args_.accumulate) return;
    ForEach([&](int, int column, int j, int64_t at) {
      FetchWord(places.OldWord(column * 4 + j), static_cast<const float*>(args_.y) + at);
    });
  }
  __device__ void WriteFetched(const StripSums<kRows>& sums, const FinishPlaces<kRows, Form>& places) const {
    Write(sums, [&](int word, const float*) { return LoadFetchedWord(places.OldWord(word)); });
  }
  __device__ void Write(const StripSums<kRows>& sums) const {
    Write(sums, [](int, const float* y) { return *y; });
  }

 private:
  // old(word of the lane, where it is in y)
  template <typename Old>
  __device__ void Write(const StripSums<kRows>& sums, const Old& old) const {
    ForEach([&](int i, int column, int j, int64_t at) {
      const float sum = sums.values[column][j];
      const float value = args_.scales != nullptr ? __fmul_rn(sum, scale_[i]) : sum;
      if (args_.term.num_ranks > 0) {
        StoreTerm(args_.term, at, value);
        return;
      }
      if (args_.y_is_bf16) {
        static_cast<__nv_bfloat16*>(args_.y)[at] = __float2bfloat16(value);
        return;
      }
      float* y = static_cast<float*>(args_.y) + at;
      *y = args_.accumulate ? value + old(column * 4 + j, y) : value;
    });
  }

  // visit(i, out) for the halves i of the strip.
  template <typename Visit>
  __device__ void ForEachOut(const Visit& visit) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (first_out_ + i * 8 < args_.out_features) visit(i, first_out_ + i * 8);
    }
  }
  // visit(i, column, j, index in y) for this lane's elements; j is the place in the mma's accumulators.
  template <typename Visit>
  __device__ void ForEach(const Visit& visit) const {
    ForEachOut([&](int i, int out) {
#pragma unroll
      for (int column = 0; column < kRows / 8; ++column) {
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
          const int row = column * 8 + threadIdx.x % 4 * 2 + odd;
          if (row < args_.num_rows) visit(i, column, i * 2 + odd, row * args_.y_stride + out);
        }
      }
    });
  }

  const DecodeMatmulArgs& args_;
  const int first_out_;
  float scale_[2];
};

}  // namespace winnow::device
