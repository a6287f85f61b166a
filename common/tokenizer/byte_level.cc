#include "common/tokenizer/byte_level.h"

#include <array>

#include "common/tokenizer/utf8.h"

namespace winnow {
namespace {

constexpr char32_t kAlphabetEnd = 0x100 + 68;  // 68 bytes are not printable

constexpr bool IsPrintable(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr std::array<char32_t, 256> MakeCharacters() {
  std::array<char32_t, 256> characters{};
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) characters[byte] = IsPrintable(byte) ? byte : next++;
  return characters;
}

constexpr std::array<int16_t, kAlphabetEnd> MakeBytes() {
  std::array<int16_t, kAlphabetEnd> bytes{};
  for (auto& b : bytes) b = -1;
  const auto characters = MakeCharacters();
  for (int byte = 0; byte < 256; ++byte) bytes[characters[byte]] = static_cast<int16_t>(byte);
  return bytes;
}

constexpr std::array<char32_t, 256> kCharacters = MakeCharacters();
constexpr std::array<int16_t, kAlphabetEnd> kBytes = MakeBytes();

}  // namespace

char32_t ByteLevelCharacter(uint8_t byte) {
  return kCharacters[byte];
}

void AppendByteLevel(std::string_view text, std::string* out) {
  for (const char c : text) AppendUtf8(kCharacters[static_cast<uint8_t>(c)], out);
}

std::string ByteLevelTokenBytes(std::string_view token) {
  std::string bytes;
  bytes.reserve(token.size());
  for (size_t pos = 0; pos < token.size();) {
    const char32_t c = NextCodePoint(token, &pos);
    if (c >= kAlphabetEnd || kBytes[c] < 0) return std::string(token);
    bytes.push_back(static_cast<char>(kBytes[c]));
  }
  return bytes;
}

}  // namespace winnow
