#include <algorithm>

#include "common/base/check.h"
#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/device/row_math.cuh"
#include "kernels/cuda/rows/flags.cuh"
#include "kernels/device/params/chunk_sums.h"

namespace winnow::device {
namespace {

constexpr int kVectors = 4;  // float4 of a thread, as in RmsNormKernel: it gives the same bits
constexpr int kMaxThreads = 512;

// Never from the first-level cache, and several under way at once.
__device__ inline float4 LoadMail(const float4* from) {
  float4 v;
  asm volatile("ld.relaxed.sys.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(from));
  return v;
}

template <int kRanks>  // at most
class ChunkSum {
 public:
  __device__ explicit ChunkSum(const ChunkSumParams& p)
      : p_(p), width_(p.hidden_size / 4), value_(*p.value + p.value_plus) {}

  // This rank's part of the rows that are others', where it adds them up too.
  __device__ void SendParts() const {
    for (int i = 1; i < p_.num_ranks; ++i) {
      const int peer = (p_.rank + i) % p_.num_ranks;
      const OwnedRows rows(p_.owners, peer, p_.num_ranks);
      float4* const mail = reinterpret_cast<float4*>(p_.mailboxes[peer] + p_.rank * p_.mailbox_stride);
      for (int j = blockIdx.x; j < rows.count(); j += gridDim.x) {
        const float4* const from = reinterpret_cast<const float4*>(p_.partial) + int64_t{rows.row(j)} * width_;
        float4* const to = mail + int64_t{j} * width_;
        float4 part[kVectors];
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
          if (At(v) < width_) part[v] = from[At(v)];
        }
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
          if (At(v) < width_) to[At(v)] = part[v];
        }
      }
    }
  }

  // What this block has done is told to its like on the other ranks, and what they have done awaited.
  __device__ void Barrier(int which) const {
    __syncthreads();
    if (threadIdx.x < p_.num_ranks && threadIdx.x != p_.rank) {
      const int peer = threadIdx.x;
      StoreRelease(Flag(peer, which, p_.rank), value_);
      WaitFor({.flag = Flag(p_.rank, which, peer), .abort = p_.abort, .error = p_.error, .timeout_us = p_.timeout_us},
              value_, PatienceOfMany());
    }
    __syncthreads();
  }

  __device__ void TakeRows() const {
    const OwnedRows rows(p_.owners, p_.rank, p_.num_ranks);
    for (int j = blockIdx.x; j < rows.count(); j += gridDim.x) TakeRow(rows.row(j), j);
  }

 private:
  __device__ int At(int v) const {
    return threadIdx.x + v * blockDim.x;
  }
  __device__ uint32_t* Flag(int with, int which, int of) const {
    return p_.flags[with] + (which * p_.num_ranks + of) * kChunkSumBlocks + blockIdx.x;
  }

  __device__ void TakeRow(int row, int own_row) const {
    float4* const x_row = reinterpret_cast<float4*>(p_.x) + int64_t{row} * width_;
    float4 x[kVectors];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) x[v] = At(v) < width_ ? x_row[At(v)] : float4{0, 0, 0, 0};
    if (p_.partial != nullptr) {
      AddParts(row, own_row, x);
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        if (At(v) < width_) x_row[At(v)] = x[v];
      }
    }
    if (p_.weight != nullptr) Norm(row, x);
  }

  __device__ void AddParts(int row, int own_row, float4 (&x)[kVectors]) const {
    float4 parts[kRanks][kVectors];
#pragma unroll
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank >= p_.num_ranks) break;
      const float4* const from =
          rank == p_.rank ? reinterpret_cast<const float4*>(p_.partial) + int64_t{row} * width_
                          : reinterpret_cast<const float4*>(p_.mailboxes[p_.rank] + rank * p_.mailbox_stride) +
                                int64_t{own_row} * width_;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        if (At(v) < width_) parts[rank][v] = LoadMail(from + At(v));
      }
    }
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (At(v) >= width_) continue;
      float4 sum = {0, 0, 0, 0};
#pragma unroll
      for (int rank = 0; rank < kRanks; ++rank) {
        if (rank >= p_.num_ranks) break;
        const float4& part = parts[rank][v];
        sum = {sum.x + part.x, sum.y + part.y, sum.z + part.z, sum.w + part.w};
      }
      x[v] = {x[v].x + sum.x, x[v].y + sum.y, x[v].z + sum.z, x[v].w + sum.w};
    }
  }

  __device__ void Norm(int row, const float4 (&x)[kVectors]) const {
    float squares = 0;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      squares += x[v].x * x[v].x + x[v].y * x[v].y + (x[v].z * x[v].z + x[v].w * x[v].w);
    }
    __shared__ float warp_squares[kWarp];
    const int lane = threadIdx.x % kWarp;
    squares = WarpSum(squares);
    if (lane == 0) warp_squares[threadIdx.x / kWarp] = squares;
    __syncthreads();
    squares = WarpSum(lane < blockDim.x / kWarp ? warp_squares[lane] : 0.0f);
    __syncthreads();  // of the row before the next one
    const float inverse = 1 / sqrtf(squares / static_cast<float>(p_.hidden_size) + p_.epsilon);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (At(v) >= width_) continue;
      const float4 weight = reinterpret_cast<const float4*>(p_.weight)[At(v)];
      const uint2 packed = make_uint2(PackBf16(x[v].x * inverse * weight.x, x[v].y * inverse * weight.y),
                                      PackBf16(x[v].z * inverse * weight.z, x[v].w * inverse * weight.w));
#pragma unroll
      for (int rank = 0; rank < kRanks; ++rank) {
        if (rank >= p_.num_ranks) break;
        if (p_.owners.group_rows == 0 && rank != p_.rank) continue;
        static_cast<uint2*>(p_.out[rank])[int64_t{row} * width_ + At(v)] = packed;
      }
    }
  }

  const ChunkSumParams& p_;
  const int width_;
  const uint32_t value_;
};

template <int kRanks>
__global__ void __launch_bounds__(kMaxThreads, 1) AddChunk(const __grid_constant__ ChunkSumParams p) {
  WaitForInputs();
  LetDependentsStart();
  const ChunkSum<kRanks> sum(p);
  if (p.partial != nullptr) sum.SendParts();
  sum.Barrier(0);
  sum.TakeRows();
  if (p.weight != nullptr) sum.Barrier(1);
}

void LaunchAddChunk(Stream stream, const ChunkSumParams& p) {
  const int width = p.hidden_size / 4, warps = (width + kVectors * kWarp - 1) / (kVectors * kWarp);
  WINNOW_CHECK(p.hidden_size % 4 == 0 && warps * kWarp <= kMaxThreads && p.mailbox_stride % 4 == 0);
  WINNOW_CHECK(p.num_ranks >= 1 && p.num_ranks <= kMaxTensorParallel);
  if (p.owners.num_rows == 0) return;
  // The same on all ranks: as many blocks as some rank has rows.
  int most_rows = 1;
  for (int rank = 0; rank < p.num_ranks; ++rank) {
    most_rows = std::max(most_rows, OwnedRows(p.owners, rank, p.num_ranks).count());
  }
  LaunchDependent(p.num_ranks <= 2 ? AddChunk<2> : AddChunk<kMaxTensorParallel>,
                  {.grid = dim3(std::min(most_rows, kChunkSumBlocks)), .threads = static_cast<unsigned>(warps * kWarp)},
                  stream, p);
}

}  // namespace

const ChunkSumKernels kChunkSumKernels = {.add_chunk = LaunchAddChunk};

}  // namespace winnow::device
