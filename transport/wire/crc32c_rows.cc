#include "transport/wire/crc32c_rows.h"

#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "transport/wire/crc32c.h"

namespace winnow {
namespace {

#if defined(__x86_64__)

uint64_t LoadRow64(const std::byte* p) {
  uint64_t word;
  std::memcpy(&word, p, sizeof(word));
  return word;
}

// row_bytes: a multiple of eight.
__attribute__((target("sse4.2"))) void FourRows(const std::byte* rows, size_t row_bytes, uint32_t* checksums) {
  uint64_t a = 0xffffffff, b = a, c = a, d = a;
  const std::byte *p = rows, *q = p + row_bytes, *r = q + row_bytes, *s = r + row_bytes;
  for (size_t i = 0; i < row_bytes; i += 8) {
    a = _mm_crc32_u64(a, LoadRow64(p + i));
    b = _mm_crc32_u64(b, LoadRow64(q + i));
    c = _mm_crc32_u64(c, LoadRow64(r + i));
    d = _mm_crc32_u64(d, LoadRow64(s + i));
  }
  checksums[0] = ~static_cast<uint32_t>(a);
  checksums[1] = ~static_cast<uint32_t>(b);
  checksums[2] = ~static_cast<uint32_t>(c);
  checksums[3] = ~static_cast<uint32_t>(d);
}

#endif

}  // namespace

void Crc32cOfRows(const std::byte* rows, size_t row_bytes, std::span<uint32_t> checksums) {
  size_t row = 0;
#if defined(__x86_64__)
  static const bool has_instruction = HasCrc32cInstruction();
  if (has_instruction && row_bytes % 8 == 0) {
    for (; row + 4 <= checksums.size(); row += 4) FourRows(rows + row * row_bytes, row_bytes, &checksums[row]);
  }
#endif
  for (; row < checksums.size(); ++row) checksums[row] = Crc32c({rows + row * row_bytes, row_bytes});
}

}  // namespace winnow
