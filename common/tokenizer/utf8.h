#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace winnow {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

// Byte offset of the first sequence that is not UTF-8 (surrogates and overlong forms are not), or npos.
size_t FindInvalidUtf8(std::string_view text);

// The code point at *pos of a valid UTF-8 text; advances *pos past it.
char32_t NextCodePoint(std::string_view text, size_t* pos);

// Bytes of the sequence that starts with this lead byte, in a valid text.
constexpr size_t Utf8SequenceBytes(unsigned char lead) {
  return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

void AppendUtf8(char32_t code_point, std::string* out);

// Number of code points of a valid UTF-8 text.
size_t CountCodePoints(std::string_view text);

// Turns a stream of bytes into valid UTF-8: each maximal invalid subpart becomes one U+FFFD (Unicode 15 section 3.9,
// which is also what Rust's String::from_utf8_lossy does). Holds back at most three bytes of an unfinished sequence.
class LossyUtf8Stream {
 public:
  void Push(std::string_view bytes, std::string* out);
  // An unfinished sequence at the end becomes one U+FFFD.
  void Finish(std::string* out);

 private:
  std::string pending_;  // a proper prefix of some valid sequence
};

}  // namespace winnow
