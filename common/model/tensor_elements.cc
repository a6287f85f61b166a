#include "common/model/tensor_elements.h"

#include <cstdint>
#include <cstring>

namespace winnow {
namespace {

float F16ToF32(uint16_t half) {
  const float sign = (half & 0x8000) != 0 ? -1.0f : 1.0f;
  const int exponent = half >> 10 & 0x1F;
  const int mantissa = half & 0x3FF;
  if (exponent == 0) return sign * static_cast<float>(mantissa) * 0x1p-24f;
  // Finite by CheckFinite. Exact: an f16 has 11 significant bits.
  uint32_t bits = static_cast<uint32_t>(exponent + 112) << 23 | static_cast<uint32_t>(mantissa) << 13;
  float value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return sign * value;
}

float ElementAsF32(const uint8_t* data, Dtype dtype, size_t index) {
  uint32_t bits = 0;
  if (dtype == Dtype::kF32) {
    std::memcpy(&bits, data + index * 4, 4);
  } else {
    uint16_t word = 0;
    std::memcpy(&word, data + index * 2, 2);
    if (dtype == Dtype::kF16) return F16ToF32(word);
    bits = static_cast<uint32_t>(word) << 16;
  }
  float value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

}  // namespace

bool IsAligned(const void* data, Dtype dtype) {
  return reinterpret_cast<uintptr_t>(data) % DtypeBytes(dtype) == 0;
}

float ElementAsF32(const TensorView& tensor, size_t index) {
  return ElementAsF32(tensor.bytes.data(), *WeightDtype(tensor.dtype), index);
}

void AppendAsF32(const TensorView& tensor, size_t first_element, size_t num_elements, std::vector<float>& out) {
  const Dtype dtype = *WeightDtype(tensor.dtype);
  for (size_t i = 0; i < num_elements; ++i) out.push_back(ElementAsF32(tensor.bytes.data(), dtype, first_element + i));
}

}  // namespace winnow
