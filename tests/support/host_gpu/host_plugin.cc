// HostGpuTable as a plugin, for WINNOW_CUDA_PLUGIN.
#include "tests/support/host_gpu/host_table.h"

extern "C" __attribute__((visibility("default"))) const winnow::cuda::CudaTable* winnow_cuda_table() {
  return &winnow::test::HostGpuTable();
}
