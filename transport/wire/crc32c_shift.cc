#include "transport/wire/crc32c_shift.h"

namespace winnow {
namespace {

// The register after one zero bit.
constexpr uint32_t AfterZeroBit(uint32_t value) {
  constexpr uint32_t kPolynomial = 0x82f63b78;
  return (value & 1) != 0 ? (value >> 1) ^ kPolynomial : value >> 1;
}

}  // namespace

Crc32cShift::Crc32cShift(size_t bytes) : tables_{} {
  std::array<uint32_t, 32> images{};  // of each bit of the register
  for (size_t bit = 0; bit < 32; ++bit) {
    uint32_t value = uint32_t{1} << bit;
    for (size_t i = 0; i < 8 * bytes; ++i) value = AfterZeroBit(value);
    images[bit] = value;
  }
  for (size_t k = 0; k < 4; ++k) {
    for (uint32_t b = 0; b < 256; ++b) {
      for (size_t bit = 0; bit < 8; ++bit) {
        if ((b >> bit & 1) != 0) tables_[k][b] ^= images[8 * k + bit];
      }
    }
  }
}

}  // namespace winnow
