#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tools/bench/gpu/gpu_context.h"

namespace winnow {

struct MatmulShape {
  int out_features;
  int in_features;
};
struct MatmulForm {
  Dtype dtype = Dtype::kBf16;
  int group_size = 0;
};
// "4096x512 int4 by 128".
std::string FormName(const MatmulForm& form);
std::string Name(const MatmulShape& shape, const MatmulForm& form);

std::vector<uint16_t> RandomBf16(GpuContext& gpu, size_t count, float scale);

// A weight matrix on the device, and what it means on the host.
struct MatmulWeight {
  device::DeviceMatrix matrix;
  std::vector<float> values;  // [out_features, in_features]
};

// Memory for a matrix, as yet poisoned.
device::DeviceMatrix NewMatrix(GpuContext& gpu, const MatmulShape& shape, const MatmulForm& form);

// Without groups packed from bf16, with them from random codes, scales and zeros. Checks what packing does to bf16.
MatmulWeight NewMatmulWeight(GpuContext& gpu, const MatmulShape& shape, const MatmulForm& form);

}  // namespace winnow
