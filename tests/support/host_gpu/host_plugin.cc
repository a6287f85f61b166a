// HostGpuTable as a plugin, for WINNOW_CUDA_PLUGIN.
#include "tests/support/host_gpu/host_table.h"

extern "C" __attribute__((visibility("default"))) const winnow::device::DeviceTable* winnow_cuda_table() {
  return &winnow::test::HostGpuTable();
}
