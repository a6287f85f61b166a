#pragma once
#include "kernels/cuda/select/list_select.cuh"

// The kernels of the selection that one cluster makes of a list, by format of keys and head dimension.

namespace winnow::device {

template <UnitFormat kFormat, int kDim>
void LaunchListSelect(Stream stream, const ListLaunch& launch) {
  LaunchDependent(
      launch.params.min_mass > 0 ? ListSelectKernel<kFormat, kDim, true> : ListSelectKernel<kFormat, kDim, false>,
      {.grid = dim3(launch.params.num_lists * launch.shape.cluster_blocks),
       .threads = kListThreads,
       .shared_bytes = launch.shape.bytes,
       .cluster_ctas = launch.shape.cluster_blocks},
      stream, launch);
}

template <UnitFormat kFormat>
void LaunchListSelectOf(Stream stream, const ListLaunch& launch) {
  switch (launch.params.head_dim) {
    case 64:
      return LaunchListSelect<kFormat, 64>(stream, launch);
    case 96:
      return LaunchListSelect<kFormat, 96>(stream, launch);
    case 128:
      return LaunchListSelect<kFormat, 128>(stream, launch);
    case 256:
      return LaunchListSelect<kFormat, 256>(stream, launch);
  }
}

}  // namespace winnow::device
