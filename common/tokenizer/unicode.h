#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace winnow {

// Character classes as the `tokenizers` library (Rust's char and regex crates) defines them.
bool IsUnicodeWhitespace(char32_t c);   // property White_Space
bool IsUnicodeNumeric(char32_t c);      // categories Nd, Nl, No
bool IsUnicodePunctuation(char32_t c);  // ASCII punctuation (symbols included) or category P*
bool IsNonspacingMark(char32_t c);      // category Mn
bool IsCombiningMark(char32_t c);       // categories M*
bool IsUnicodeControl(char32_t c);      // categories Cc, Cf and Co
bool IsWordCharacter(char32_t c);       // \w of a Unicode regex

enum class NormalizationForm { kNfc, kNfd, kNfkc, kNfkd };

// Unicode normalization of a valid UTF-8 text; O(n log n) for every input, long runs of combining marks included.
std::string NormalizeUnicode(std::string_view text, NormalizationForm form);

// Full lowercase mapping without context rules (Rust's char::to_lowercase per character).
std::string LowercaseUnicode(std::string_view text);

// `text` less the characters for which the predicate holds.
std::string WithoutCharacters(std::string_view text, bool (*predicate)(char32_t));

// Cuts a valid UTF-8 text into extended grapheme clusters. The text must outlive it.
class GraphemeCutter {
 public:
  explicit GraphemeCutter(std::string_view text) : rest_(text) {}
  // The next cluster, empty at the end.
  std::string_view Next();

 private:
  std::string_view rest_;
};

}  // namespace winnow
