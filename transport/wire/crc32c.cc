#include "transport/wire/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "transport/wire/crc32c_shift.h"

namespace winnow {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;

// kByteTables[k][b]: the register after byte b was fed and then k zero bytes, so that eight bytes take eight lookups.
constexpr std::array<std::array<uint32_t, 256>, 8> MakeByteTables() {
  std::array<std::array<uint32_t, 256>, 8> tables{};
  for (uint32_t b = 0; b < 256; ++b) {
    uint32_t value = b;
    for (int bit = 0; bit < 8; ++bit) value = (value & 1) != 0 ? (value >> 1) ^ kPolynomial : value >> 1;
    tables[0][b] = value;
  }
  for (size_t k = 1; k < 8; ++k) {
    for (uint32_t b = 0; b < 256; ++b) tables[k][b] = (tables[k - 1][b] >> 8) ^ tables[0][tables[k - 1][b] & 0xff];
  }
  return tables;
}
constexpr auto kByteTables = MakeByteTables();

uint64_t Load64(const std::byte* p) {
  uint64_t word;
  std::memcpy(&word, p, sizeof(word));
  return word;
}

#if defined(__x86_64__)

// The instruction has a latency of three cycles and a throughput of one, so three independent streams keep it busy. The
// streams are joined by advancing a register over the zero bytes that stand for the next stream.
constexpr size_t kLongStream = 4096;
constexpr size_t kShortStream = 256;

__attribute__((target("sse4.2"))) uint32_t ThreeStreams(const std::byte* p, size_t stream_bytes,
                                                        const Crc32cShift& shift, uint32_t crc) {
  uint64_t a = crc, b = 0, c = 0;
  for (const std::byte* end = p + stream_bytes; p < end; p += 8) {
    a = _mm_crc32_u64(a, Load64(p));
    b = _mm_crc32_u64(b, Load64(p + stream_bytes));
    c = _mm_crc32_u64(c, Load64(p + 2 * stream_bytes));
  }
  return shift(shift(static_cast<uint32_t>(a)) ^ static_cast<uint32_t>(b)) ^ static_cast<uint32_t>(c);
}

__attribute__((target("sse4.2"))) uint32_t HardwareRegister(const std::byte* p, size_t n, uint32_t crc) {
  if (n >= 3 * kShortStream) {
    static const Crc32cShift long_shift(kLongStream);
    static const Crc32cShift short_shift(kShortStream);
    for (; n >= 3 * kLongStream; p += 3 * kLongStream, n -= 3 * kLongStream) {
      crc = ThreeStreams(p, kLongStream, long_shift, crc);
    }
    for (; n >= 3 * kShortStream; p += 3 * kShortStream, n -= 3 * kShortStream) {
      crc = ThreeStreams(p, kShortStream, short_shift, crc);
    }
  }
  uint64_t wide = crc;
  for (; n >= 8; p += 8, n -= 8) wide = _mm_crc32_u64(wide, Load64(p));
  crc = static_cast<uint32_t>(wide);
  for (; n > 0; ++p, --n) crc = _mm_crc32_u8(crc, static_cast<uint8_t>(*p));
  return crc;
}

#endif

}  // namespace

uint32_t Crc32cPortable(std::span<const std::byte> bytes, uint32_t crc) {
  const std::byte* p = bytes.data();
  size_t n = bytes.size();
  crc = ~crc;
  for (; n >= 8; p += 8, n -= 8) {
    const uint64_t word = Load64(p) ^ crc;
    crc = 0;
    for (size_t k = 0; k < 8; ++k) crc ^= kByteTables[7 - k][word >> (8 * k) & 0xff];
  }
  for (; n > 0; ++p, --n) crc = (crc >> 8) ^ kByteTables[0][(crc ^ static_cast<uint32_t>(*p)) & 0xff];
  return ~crc;
}

#if defined(__x86_64__)
bool HasCrc32cInstruction() {
  return __builtin_cpu_supports("sse4.2") != 0;
}
uint32_t Crc32cHardware(std::span<const std::byte> bytes, uint32_t crc) {
  return ~HardwareRegister(bytes.data(), bytes.size(), ~crc);
}
#else
bool HasCrc32cInstruction() {
  return false;
}
uint32_t Crc32cHardware(std::span<const std::byte> bytes, uint32_t crc) {
  return Crc32cPortable(bytes, crc);
}
#endif

uint32_t Crc32c(std::span<const std::byte> bytes, uint32_t crc) {
  static const auto best = HasCrc32cFolding()       ? Crc32cFolding
                           : HasCrc32cInstruction() ? Crc32cHardware
                                                    : Crc32cPortable;
  return best(bytes, crc);
}

}  // namespace winnow
