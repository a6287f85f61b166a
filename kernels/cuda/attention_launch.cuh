#pragma once
#include <cuda_runtime.h>

#include "common/base/check.h"
#include "kernels/cuda/attention_decode.cuh"

namespace winnow::cuda {

// Enqueues one kernel over `num_lists` lists, so that its blocks may start while the kernel before still runs. One file
// per row type instantiates it.
template <Dtype kDtype>
void LaunchDecode(cudaStream_t stream, const DecodeLaunch& launch, int num_lists);

template <int kHeadDim, Dtype kDtype>
void LaunchDecodeOf(cudaStream_t stream, const DecodeLaunch& launch, int num_lists) {
  constexpr int kSharedBytes = DecodeShape<kHeadDim, kDtype>::kSharedBytes;
  const auto kernel = DecodeAttentionKernel<kHeadDim, kDtype>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(launch.max_units, num_lists);
  config.blockDim = dim3(kDecodeWarps * 32);
  config.dynamicSmemBytes = kSharedBytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 1;
  if (launch.clustered) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = kClusterUnits;
    attributes[1].val.clusterDim.y = 1;
    attributes[1].val.clusterDim.z = 1;
    config.numAttrs = 2;
  }
  cudaLaunchKernelEx(&config, kernel, launch);  // a refusal is kept for Device::CheckLaunches
}

template <Dtype kDtype>
void LaunchDecode(cudaStream_t stream, const DecodeLaunch& launch, int num_lists) {
  switch (launch.params.head_dim) {
    case 64:
      return LaunchDecodeOf<64, kDtype>(stream, launch, num_lists);
    case 96:
      return LaunchDecodeOf<96, kDtype>(stream, launch, num_lists);
    case 128:
      return LaunchDecodeOf<128, kDtype>(stream, launch, num_lists);
    default:
      return LaunchDecodeOf<256, kDtype>(stream, launch, num_lists);
  }
}

}  // namespace winnow::cuda
