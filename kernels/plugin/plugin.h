#pragma once
#include <string>

#include "absl/status/statusor.h"
#include "kernels/plugin/device_table.h"

namespace winnow::device {

// Loads the plugin, once per process: libwinnow_cuda.so from $WINNOW_CUDA_PLUGIN, the program's folder or its ../lib.
// UNAVAILABLE says what is missing: the plugin, a CUDA library (by its name), a driver, a GPU.
absl::StatusOr<const DeviceTable*> LoadPlugin();

}  // namespace winnow::device
