#include <algorithm>

#include "common/base/check.h"
#include "kernels/cuda/collective/all_reduce_terms.cuh"
#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/device/row_math.cuh"
#include "kernels/cuda/rows/flags.cuh"

namespace winnow::device {
namespace {

constexpr int kVectors = 4;  // float4 of a thread, as in RmsNormKernel: it gives the same bits
constexpr int kMaxWarps = 16;
constexpr int kMaxParts = 8;  // of a row: blocks of a cluster
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr int kMaxThreads = kMaxWarps * kWarp;
#else
constexpr int kMaxThreads = kMaxWarps / kMaxParts * kWarp;
#endif

// Rows up to which a sum looks for its terms while the product is still running; with more it gains nothing.
constexpr int kMaxEarlyRows = 8;
// About 1 and 4 ms: no look at the clock or at host memory delays a sum that is about to be there. After 64 looks
// already, as in WaitFor, the warps of 16 rows held each other up for 160 us a sum.
constexpr uint32_t kVainBeforeFirstLook = 4096, kVainBetweenLooks = 16384;

// A warp's bounded wait, as WaitFor of flags.cuh.
class WarpWait {
 public:
  __device__ explicit WarpWait(const AddTermsParams& p) : p_(p) {}
  // By all lanes, once for each time they have looked in vain. False: it has failed.
  __device__ bool GoOn() {
    if (polls_++ % kVainBetweenLooks != kVainBeforeFirstLook) return true;
    uint32_t failed = 0;
    if (threadIdx.x % kWarp == 0) failed = HasFailed();
    return __shfl_sync(0xffffffffu, failed, 0) == 0;
  }

 private:
  __device__ bool HasFailed() {
    if (p_.error != nullptr && LoadWord(p_.error) != 0) return true;
    const bool aborted = p_.abort != nullptr && LoadWord(p_.abort) != 0;
    const uint64_t now = GlobalNanoseconds();
    if (deadline_ == 0) deadline_ = now + uint64_t{1000} * p_.timeout_us;
    if (!aborted && now < deadline_) return false;
    if (p_.error != nullptr) StoreRelease(p_.error, aborted ? kWaitAborted : kWaitTimedOut);
    return true;
  }

  const AddTermsParams& p_;
  uint32_t polls_ = 0;
  uint64_t deadline_ = 0;
};

// A row's parts, by the blocks of a cluster. Few rows do not wait for the product before them to end, but for what that
// and its like on other GPUs store; as that one began when all before it had ended, nothing else can still be under
// way.
__global__ void __launch_bounds__(kMaxThreads) AddTerms(const AddTermsParams p, const int warps) {
  const int width = p.hidden_size / 4, parts = ClusterBlocks(), part = ClusterRank();
  const int64_t row = blockIdx.x / parts;
  const int threads = warps * kWarp, thread = part * blockDim.x + threadIdx.x;
  const auto at = [&](int i) { return thread < threads ? thread + i * threads : width; };
  ClusterArrive();  // the others' shared memory is there behind ClusterWait
  float4 weight[kVectors], x[kVectors], term[kMaxTerms][kVectors] = {};
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (p.weight != nullptr && at(i) < width) weight[i] = reinterpret_cast<const float4*>(p.weight)[at(i)];
  }
  auto* const x_row = reinterpret_cast<float4*>(p.x) + row * width;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) x[i] = at(i) < width ? __ldcg(x_row + at(i)) : float4{0, 0, 0, 0};

  const auto place = [&](int rank, int i) {
    return reinterpret_cast<float4*>(p.terms + rank * p.term_stride) + row * width + at(i);
  };
  if (p.num_rows > kMaxEarlyRows) WaitForInputs();
  WarpWait wait(p);
  // One word of each lane's until something comes: a product takes long, and looks take bandwidth.
  do {
    LoadTerm(term[0][0], place(0, 0), at(0) < width);
  } while (__any_sync(0xffffffffu, at(0) < width && !HaveCome(term[0][0])) && wait.GoOn());
  bool all;
  do {
#pragma unroll
    for (int rank = 0; rank < kMaxTerms; ++rank) {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        LoadTerm(term[rank][i], place(rank, i), rank < p.num_ranks && at(i) < width && !HaveCome(term[rank][i]));
      }
    }
    all = true;
#pragma unroll
    for (int rank = 0; rank < kMaxTerms; ++rank) {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        all = all && (rank >= p.num_ranks || at(i) >= width || HaveCome(term[rank][i]));
      }
    }
  } while (!__all_sync(0xffffffffu, all) && wait.GoOn());

  // Not before: a block that stays on some multiprocessors while the product's leave keeps the next product from having
  // one on each (8 rows: 9.1 instead of 5.3 ms a step).
  LetDependentsStart();
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    float4 sum = {0, 0, 0, 0};
#pragma unroll
    for (int rank = 0; rank < kMaxTerms; ++rank) {
      if (rank >= p.num_ranks) break;
      const float4& v = term[rank][i];
      sum = {sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w};
    }
    x[i] = {x[i].x + sum.x, x[i].y + sum.y, x[i].z + sum.z, x[i].w + sum.w};
    squares += x[i].x * x[i].x + x[i].y * x[i].y + (x[i].z * x[i].z + x[i].w * x[i].w);
  }
  __shared__ float warp_squares[kWarp];  // of the whole row
  const int lane = threadIdx.x % kWarp;
  if (p.weight != nullptr) {
    squares = WarpSum(squares);
    ClusterWait();
    if (lane < parts) *OfRank(&warp_squares[thread / kWarp], lane) = squares;
    ClusterArrive();
  }
  // While the others' squares are on their way.
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (at(i) >= width) continue;
    x_row[at(i)] = x[i];
#pragma unroll
    for (int rank = 0; rank < kMaxTerms; ++rank) {
      if (rank < p.num_ranks) *place(rank, i) = {0, 0, 0, 0};
    }
  }
  ClusterWait();
  if (parts == 1) __syncthreads();
  if (p.weight != nullptr) {
    squares = WarpSum(lane < warps ? warp_squares[lane] : 0.0f);
    const float inverse = 1 / sqrtf(squares / static_cast<float>(p.hidden_size) + p.epsilon);
    uint2* out = static_cast<uint2*>(p.out) + row * width;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (at(i) >= width) continue;
      out[at(i)] = make_uint2(PackBf16(x[i].x * inverse * weight[i].x, x[i].y * inverse * weight[i].y),
                              PackBf16(x[i].z * inverse * weight[i].z, x[i].w * inverse * weight[i].w));
    }
  }
  WaitForInputs();  // what follows may rely on it
}

void LaunchAddTerms(Stream stream, const AddTermsParams& p) {
  const int width = p.hidden_size / 4, warps = (width + kVectors * kWarp - 1) / (kVectors * kWarp);
  WINNOW_CHECK(p.hidden_size % 4 == 0 && warps <= kMaxWarps && p.term_stride % 4 == 0);
  WINNOW_CHECK(p.num_ranks >= 1 && p.num_ranks <= kMaxTerms);
  if (p.num_rows == 0) return;
  const int most_parts = ComputeMajor() >= 9 ? kMaxParts : 1;
  const int warps_each = (warps + most_parts - 1) / most_parts, parts = (warps + warps_each - 1) / warps_each;
  LaunchDependent(AddTerms,
                  {.grid = dim3(parts * p.num_rows),
                   .threads = static_cast<unsigned>(warps_each * kWarp),
                   .cluster_ctas = static_cast<unsigned>(parts)},
                  stream, p, warps);
}

}  // namespace

const AllReduceKernels kAllReduceKernels = {.add_terms = LaunchAddTerms};

}  // namespace winnow::device
