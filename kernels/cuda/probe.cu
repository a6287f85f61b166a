#include <cuda_runtime.h>

#include "kernels/cuda/probe.h"

namespace winnow::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kLoads = 8;  // in flight of a thread

__global__ void __launch_bounds__(kThreads) Read(const uint4* data, size_t words, uint32_t* sum) {
  const size_t stride = static_cast<size_t>(gridDim.x) * kThreads;
  uint32_t total = 0;
  size_t i = static_cast<size_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (; i + (kLoads - 1) * stride < words; i += kLoads * stride) {
    uint4 loaded[kLoads];
#pragma unroll
    for (int k = 0; k < kLoads; ++k) loaded[k] = __ldcs(data + i + k * stride);
#pragma unroll
    for (int k = 0; k < kLoads; ++k) total += loaded[k].x ^ loaded[k].y ^ loaded[k].z ^ loaded[k].w;
  }
  for (; i < words; i += stride) total += data[i].x;
  if (total == 0x9E3779B9) *sum = total;
}

void LaunchRead(Stream stream, const void* data, size_t bytes, uint32_t* sum) {
  int device = 0, multiprocessors = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  Read<<<multiprocessors * 4, kThreads, 0, stream>>>(static_cast<const uint4*>(data), bytes / sizeof(uint4), sum);
}

}  // namespace

const ProbeKernels kProbeKernels = {.read = LaunchRead};

}  // namespace winnow::cuda
