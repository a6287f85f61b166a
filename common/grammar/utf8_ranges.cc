#include "common/grammar/utf8_ranges.h"

#include <algorithm>
#include <string>

#include "common/tokenizer/utf8.h"

namespace winnow {
namespace {

constexpr char32_t kLastOfLength[] = {0x7F, 0x7FF, 0xFFFF, 0x10FFFF};

// Both ends have texts of one length. The range is cut where all trailing bytes from some byte on take all their
// values, or its ends agree up to the last byte.
void AddOfLength(char32_t first, char32_t last, std::vector<ByteRanges>* out) {
  std::string low, high;
  AppendUtf8(first, &low);
  AppendUtf8(last, &high);
  const int length = static_cast<int>(low.size());
  for (int trailing = 1; trailing < length; ++trailing) {
    const char32_t mask = (char32_t{1} << (6 * trailing)) - 1;
    if ((first & ~mask) == (last & ~mask)) break;
    if ((first & mask) != 0) {
      AddOfLength(first, first | mask, out);
      return AddOfLength((first | mask) + 1, last, out);
    }
    if ((last & mask) != mask) {
      AddOfLength(first, (last & ~mask) - 1, out);
      return AddOfLength(last & ~mask, last, out);
    }
  }
  ByteRanges ranges{.length = length};
  for (int i = 0; i < length; ++i) {
    ranges.first[i] = static_cast<uint8_t>(low[i]);
    ranges.last[i] = static_cast<uint8_t>(high[i]);
  }
  out->push_back(ranges);
}

}  // namespace

std::vector<ByteRanges> Utf8Ranges(CodePointRange range) {
  std::vector<ByteRanges> out;
  char32_t first = range.first;
  for (const char32_t end : kLastOfLength) {
    if (first > range.last) break;
    if (first > end) continue;
    AddOfLength(first, std::min(range.last, end), &out);
    first = end + 1;
  }
  return out;
}

}  // namespace winnow
