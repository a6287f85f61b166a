#pragma once
#include <cstddef>
#include <vector>

#include "common/model/safetensors.h"

namespace winnow {

// Appends elements [first_element, first_element + num_elements) of a tensor of dtype f32, f16 or bf16 as f32, which
// holds every stored value. The tensor may lie unaligned.
void AppendAsF32(const TensorView& tensor, size_t first_element, size_t num_elements, std::vector<float>& out);

// Element `index` of a tensor of those dtypes.
float ElementAsF32(const TensorView& tensor, size_t index);

// True when the tensor's elements lie at multiples of their size, as kernels expect.
bool IsAligned(const void* data, Dtype dtype);

}  // namespace winnow
