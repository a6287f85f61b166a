#pragma once
#include <cuda_runtime.h>

#include <algorithm>

#include "common/base/check.h"
#include "kernels/cuda/attention/attention_decode.cuh"
#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/device/tensor_map.h"

namespace winnow::device {

// Enqueues one kernel, so that its blocks may start while the kernel before still runs. One file per row type
// instantiates it.
template <Dtype kDtype>
void LaunchDecode(cudaStream_t stream, const DecodeLaunch& launch);

template <int kHeadDim, Dtype kDtype, bool kClustered>
void LaunchDecodeOf(cudaStream_t stream, DecodeLaunch launch) {
  using Shape = DecodeShape<kHeadDim, kDtype>;
  launch.num_stages = Shape::Stages(kClustered, DeviceAttribute(cudaDevAttrMaxSharedMemoryPerBlockOptin));
  if constexpr (Shape::kBoxes) {
    constexpr int64_t kAnySlots = int64_t{1} << 31;
    if (ComputeMajor() >= 9) {
      launch.slots =
          TensorMapOf(launch.params.slot_pool, 1, Shape::kRowBytes, kAnySlots, Shape::kRowBytes, Shape::kStreamRows);
    }
  }
  const int shared_bytes = Shape::FixedBytes(kClustered) + launch.num_stages * Shape::kStageBytes;
  const auto kernel = DecodeAttentionKernel<kHeadDim, kDtype, kClustered>;
  if constexpr (kClustered) cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  const dim3 grid = kClustered
                        ? dim3(launch.max_units, launch.num_lists)
                        : dim3(std::min<uint32_t>(launch.num_lists * launch.max_units,
                                                  DeviceAttribute(cudaDevAttrMultiProcessorCount) * Shape::kBlocks));
  LaunchDependent(kernel,
                  {.grid = grid,
                   .threads = kDecodeThreads,
                   .shared_bytes = static_cast<size_t>(shared_bytes),
                   .cluster_ctas = kClustered ? launch.max_units : 1},
                  stream, launch);
}

template <Dtype kDtype>
void LaunchDecode(cudaStream_t stream, const DecodeLaunch& launch) {
  if constexpr (kDtype == Dtype::kBf16) {  // of small models, with which a way to serve is tried
    if (launch.params.head_dim == 16) return LaunchDecodeOf<16, kDtype, false>(stream, launch);
    if (launch.params.head_dim == 32) return LaunchDecodeOf<32, kDtype, false>(stream, launch);
  }
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

}  // namespace winnow::device
