#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

namespace winnow {

// Joins checksums: the CRC-32C of A followed by B, of which B always has `bytes` bytes, is shift(crc of A) ^ crc of B.
// What so many zero bytes do to a register is a linear map, kept as four byte tables.
class Crc32cShift {
 public:
  explicit Crc32cShift(size_t bytes);
  uint32_t operator()(uint32_t crc) const {
    return tables_[0][crc & 0xff] ^ tables_[1][crc >> 8 & 0xff] ^ tables_[2][crc >> 16 & 0xff] ^ tables_[3][crc >> 24];
  }

 private:
  std::array<std::array<uint32_t, 256>, 4> tables_;
};

}  // namespace winnow
