#pragma once
#include <cstdint>
#include <span>

namespace winnow::fuzz {

// Reads an input as the choices of a program that makes calls. At its end every choice is the first one.
class CallReader {
 public:
  explicit CallReader(std::span<const uint8_t> input) : rest_(input) {}

  bool done() const { return rest_.empty(); }
  uint8_t Byte() {
    if (rest_.empty()) return 0;
    const uint8_t byte = rest_.front();
    rest_ = rest_.subspan(1);
    return byte;
  }
  uint32_t Below(uint32_t end) { return Byte() % end; }  // end <= 256
  bool OneIn(uint32_t n) { return Byte() % n == n - 1; }
  uint32_t Number() { return Byte() | uint32_t{Byte()} << 8 | uint32_t{Byte()} << 16 | uint32_t{Byte()} << 24; }
  // What a correct peer would say, as often as not; else one that is off by a little, or by much.
  uint32_t Near(uint32_t right) {
    switch (const uint8_t choice = Byte(); choice) {
      case 247:
        return 0;
      case 248:
        return right + 1;
      case 249:
        return right - 1;
      case 250:
        return right + Byte();
      case 251:
        return right - Byte();
      case 252:
        return UINT32_MAX - Byte();
      case 253:
        return 1u << Below(32);
      case 254:
        return Byte();
      case 255:
        return Number();
      default:
        return right;
    }
  }

 private:
  std::span<const uint8_t> rest_;
};

}  // namespace winnow::fuzz
