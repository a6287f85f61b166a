#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace winnow {

// GPT-2's reversible alphabet: printable bytes stand for themselves, the others for U+0100 onwards, so that every byte
// string is a text without spaces or control characters.

// The character that stands for a byte.
char32_t ByteLevelCharacter(uint8_t byte);

// Appends the characters that stand for the bytes of `text`.
void AppendByteLevel(std::string_view text, std::string* out);

// The bytes that a token of the alphabet stands for; the token's own bytes when one character is not of the alphabet
// (an added token such as "a b").
std::string ByteLevelTokenBytes(std::string_view token);

}  // namespace winnow
