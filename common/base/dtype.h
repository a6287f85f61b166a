#pragma once
#include <cstddef>
#include <cstdint>

namespace winnow {

// Element types of weights, KV rows and index keys. Only index keys are int8.
enum class Dtype : uint8_t { kF32 = 1, kBf16 = 2, kF16 = 3, kI8 = 4 };

constexpr size_t DtypeBytes(Dtype dtype) {
  return dtype == Dtype::kF32 ? 4 : dtype == Dtype::kI8 ? 1 : 2;
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
  }
  return "unknown";
}

}  // namespace winnow
