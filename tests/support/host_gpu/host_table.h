#pragma once
#include "kernels/plugin/device_table.h"

namespace winnow::test {

// A CUDA backend for machines without a GPU: its devices are host memory, its launchers the CPU backend's kernels with
// the roundings of the GPU's interfaces in between. It has what an inference rank's forward pass and the
// two sides of a peer link need; rows and activations are bf16 only.
const device::DeviceTable& HostGpuTable();

}  // namespace winnow::test
