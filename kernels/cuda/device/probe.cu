#include "kernels/device/params/probe.h"

namespace winnow::device {
namespace {

constexpr int kThreads = 512;
constexpr int kLoads = 8;  // in flight per thread: 64 KB per block

__global__ void __launch_bounds__(kThreads) ReadKernel(const uint4* __restrict__ data, size_t count, uint32_t* sink) {
  uint32_t seen = 0;
  const size_t step = size_t{kThreads} * kLoads * gridDim.x;
  for (size_t base = size_t{kThreads} * kLoads * blockIdx.x + threadIdx.x; base < count; base += step) {
    uint4 values[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const size_t at = base + size_t{kThreads} * i;
      values[i] = at < count ? __ldcs(data + at) : uint4{};
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) seen ^= values[i].x ^ values[i].y ^ values[i].z ^ values[i].w;
  }
  // Keeps the loads: the compiler cannot know that this does not happen.
  if (seen == 0x5eed5eed && count == 1) *sink = seen;
}

__global__ void __launch_bounds__(kThreads)
    CopyKernel(uint4* __restrict__ to, const uint4* __restrict__ from, size_t count) {
  const size_t step = size_t{kThreads} * kLoads * gridDim.x;
  for (size_t base = size_t{kThreads} * kLoads * blockIdx.x + threadIdx.x; base < count; base += step) {
    uint4 values[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const size_t at = base + size_t{kThreads} * i;
      if (at < count) values[i] = __ldcs(from + at);
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const size_t at = base + size_t{kThreads} * i;
      if (at < count) __stcs(to + at, values[i]);
    }
  }
}

constexpr int kBlocks = 132 * 4;

}  // namespace

const ProbeKernels kProbeKernels = {
    .read =
        [](Stream stream, const void* data, size_t bytes, uint32_t* sink) {
          ReadKernel<<<kBlocks, kThreads, 0, stream>>>(static_cast<const uint4*>(data), bytes / 16, sink);
        },
    .copy =
        [](Stream stream, void* to, const void* from, size_t bytes) {
          CopyKernel<<<kBlocks, kThreads, 0, stream>>>(static_cast<uint4*>(to), static_cast<const uint4*>(from),
                                                       bytes / 16);
        },
};

}  // namespace winnow::device
