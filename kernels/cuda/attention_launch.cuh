#pragma once
#include <cuda_runtime.h>

#include <algorithm>

#include "common/base/check.h"
#include "kernels/cuda/attention_decode.cuh"

namespace winnow::cuda {

// Enqueues one kernel, so that its blocks may start while the kernel before still runs. One file per row type
// instantiates it.
template <Dtype kDtype>
void LaunchDecode(cudaStream_t stream, const DecodeLaunch& launch);

inline int DeviceAttribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&value, attribute, device);
  return value;
}

template <int kHeadDim, Dtype kDtype, bool kClustered>
void LaunchDecodeOf(cudaStream_t stream, DecodeLaunch launch) {
  using Shape = DecodeShape<kHeadDim, kDtype>;
  launch.num_stages = Shape::Stages(kClustered, DeviceAttribute(cudaDevAttrMaxSharedMemoryPerBlockOptin));
  const int shared_bytes = Shape::FixedBytes(kClustered) + launch.num_stages * Shape::kStageBytes;
  const auto kernel = DecodeAttentionKernel<kHeadDim, kDtype, kClustered>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = kClustered
                       ? dim3(launch.max_units, launch.num_lists)
                       : dim3(std::min<uint32_t>(launch.num_lists * launch.max_units,
                                                 DeviceAttribute(cudaDevAttrMultiProcessorCount) * Shape::kBlocks));
  config.blockDim = dim3(kDecodeThreads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = DeviceAttribute(cudaDevAttrComputeCapabilityMajor) >= 9 ? 1 : 0;
  if constexpr (kClustered) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = launch.max_units;
    attributes[1].val.clusterDim.y = 1;
    attributes[1].val.clusterDim.z = 1;
    config.numAttrs = 2;
  }
  cudaLaunchKernelEx(&config, kernel, launch);  // a refusal is kept for Device::CheckLaunches
}

template <Dtype kDtype>
void LaunchDecode(cudaStream_t stream, const DecodeLaunch& launch) {
  switch (launch.params.head_dim) {
    case 64:
      return launch.clustered ? LaunchDecodeOf<64, kDtype, true>(stream, launch)
                              : LaunchDecodeOf<64, kDtype, false>(stream, launch);
    case 96:
      return launch.clustered ? LaunchDecodeOf<96, kDtype, true>(stream, launch)
                              : LaunchDecodeOf<96, kDtype, false>(stream, launch);
    case 128:
      return launch.clustered ? LaunchDecodeOf<128, kDtype, true>(stream, launch)
                              : LaunchDecodeOf<128, kDtype, false>(stream, launch);
    default:
      return LaunchDecodeOf<256, kDtype, false>(stream, launch);  // too large for clusters of 16
  }
}

}  // namespace winnow::cuda
