#include "transport/wire/crc32c.h"

#if defined(__x86_64__)
#include <immintrin.h>

// By function and not by file: what this file shares with others (inline functions of headers) must run on every CPU.
#define WINNOW_FOLDS __attribute__((target("sse4.2,pclmul,avx512f,avx512bw,avx512vl,vpclmulqdq")))

namespace winnow {
namespace {

constexpr uint32_t kFoldingPolynomial = 0x82f63b78;

// Folding, for CPUs with carry-less multiplication of 512 bits: a block of bits is replaced by its remainder times x^n,
// added to the bits that lie n further on ("Fast CRC Computation for Generic Polynomials Using PCLMULQDQ", Gopal et
// al., Intel 2009, in its reflected form). What is left in the end is 16 bytes with the same checksum.
constexpr uint64_t FoldConstant(int exponent) {
  // x^exponent mod the polynomial, reflected: bit 31 is x^0. Shifted by one, as a reflected product is one bit short.
  uint32_t value = 0x80000000;
  for (int i = 0; i < exponent; ++i) value = (value & 1) != 0 ? (value >> 1) ^ kFoldingPolynomial : value >> 1;
  return uint64_t{value} << 1;
}
constexpr size_t kFoldedBytes = 256;  // per round: four vectors

WINNOW_FOLDS __m512i FoldConstants(int bits) {
  const __m128i pair =
      _mm_set_epi64x(static_cast<int64_t>(FoldConstant(bits - 32)), static_cast<int64_t>(FoldConstant(bits + 32)));
  return _mm512_broadcast_i32x4(pair);
}
WINNOW_FOLDS inline __m512i Fold(__m512i bits, __m512i constants, __m512i onto) {
  return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(bits, constants, 0x00),
                                   _mm512_clmulepi64_epi128(bits, constants, 0x11), onto, 0x96);  // a ^ b ^ c
}
WINNOW_FOLDS inline __m128i Fold(__m128i bits, __m128i constants, __m128i onto) {
  return _mm_xor_si128(
      _mm_xor_si128(_mm_clmulepi64_si128(bits, constants, 0x00), _mm_clmulepi64_si128(bits, constants, 0x11)), onto);
}

// n: at least kFoldedBytes.
WINNOW_FOLDS uint32_t FoldedChecksum(const std::byte* p, size_t n, uint32_t crc) {
  static const __m512i by_round = FoldConstants(2048), by_vector = FoldConstants(512), by_lane = FoldConstants(128);
  __m512i x[4];
  for (int i = 0; i < 4; ++i) x[i] = _mm512_loadu_si512(p + 64 * i);
  x[0] = _mm512_xor_si512(x[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(crc))));
  for (p += kFoldedBytes, n -= kFoldedBytes; n >= kFoldedBytes; p += kFoldedBytes, n -= kFoldedBytes) {
    for (int i = 0; i < 4; ++i) x[i] = Fold(x[i], by_round, _mm512_loadu_si512(p + 64 * i));
  }
  for (int i = 1; i < 4; ++i) x[i] = Fold(x[i - 1], by_vector, x[i]);
  const __m128i lane_constants = _mm512_castsi512_si128(by_lane);
  __m128i last = _mm512_castsi512_si128(x[3]);
  last = Fold(last, lane_constants, _mm512_extracti32x4_epi32(x[3], 1));
  last = Fold(last, lane_constants, _mm512_extracti32x4_epi32(x[3], 2));
  last = Fold(last, lane_constants, _mm512_extracti32x4_epi32(x[3], 3));
  uint64_t wide = _mm_crc32_u64(0, static_cast<uint64_t>(_mm_cvtsi128_si64(last)));
  wide = _mm_crc32_u64(wide, static_cast<uint64_t>(_mm_extract_epi64(last, 1)));
  return Crc32cHardware({p, n}, ~static_cast<uint32_t>(wide));
}

}  // namespace

bool HasCrc32cFolding() {
  return __builtin_cpu_supports("sse4.2") != 0 && __builtin_cpu_supports("pclmul") != 0 &&
         __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
         __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("vpclmulqdq") != 0;
}

uint32_t Crc32cFolding(std::span<const std::byte> bytes, uint32_t crc) {
  if (bytes.size() < kFoldedBytes) return Crc32cHardware(bytes, crc);
  return FoldedChecksum(bytes.data(), bytes.size(), ~crc);
}

}  // namespace winnow

#else

namespace winnow {

bool HasCrc32cFolding() {
  return false;
}
uint32_t Crc32cFolding(std::span<const std::byte> bytes, uint32_t crc) {
  return Crc32cPortable(bytes, crc);
}

}  // namespace winnow

#endif
