#pragma once
#include <cstddef>
#include <cstdint>

namespace winnow {

// Element types of weights, KV rows and index keys. On CPUs KV rows are f32, bf16 or int8. fp8 is e4m3.
enum class Dtype : uint8_t { kF32 = 1, kBf16 = 2, kF16 = 3, kI8 = 4, kI4 = 5, kF8 = 6 };

// Of so many elements; a byte that is begun counts.
constexpr size_t DtypeBytes(Dtype dtype, size_t elements = 1) {
  if (dtype == Dtype::kI4) return (elements + 1) / 2;
  return elements * (dtype == Dtype::kF32 ? 4 : dtype == Dtype::kI8 || dtype == Dtype::kF8 ? 1 : 2);
}

constexpr const char* DtypeName(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32:
      return "f32";
    case Dtype::kBf16:
      return "bf16";
    case Dtype::kF16:
      return "f16";
    case Dtype::kI8:
      return "int8";
    case Dtype::kI4:
      return "int4";
    case Dtype::kF8:
      return "fp8";
  }
  return "unknown";
}

}  // namespace winnow
