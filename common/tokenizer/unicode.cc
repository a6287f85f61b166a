#include "common/tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <vector>

#include "common/base/check.h"
#include "common/tokenizer/newer_characters.h"
#include "common/tokenizer/utf8.h"

namespace winnow {
namespace {

bool IsAscii(std::string_view text) {
  return std::none_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) >= 0x80; });
}

int CombiningClass(utf8proc_int32_t c) {
  return utf8proc_get_property(c)->combining_class;
}

// utf8proc orders combining marks with a quadratic sort, which a long run of marks would turn into a hang.
void OrderCombiningMarks(std::vector<utf8proc_int32_t>* code_points) {
  auto begin = code_points->begin();
  while (begin != code_points->end()) {
    if (CombiningClass(*begin) == 0) {
      ++begin;
      continue;
    }
    const auto end = std::find_if(begin, code_points->end(), [](auto c) { return CombiningClass(c) == 0; });
    std::stable_sort(begin, end, [](auto a, auto b) { return CombiningClass(a) < CombiningClass(b); });
    begin = end;
  }
}

}  // namespace

bool IsUnicodeWhitespace(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool IsUnicodeNumeric(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return true;
    default:
      return false;
  }
}

bool IsUnicodePunctuation(char32_t c) {
  // Once punctuation, and still so in the library.
  if (c == 0x166D || c == 0x111C9) return true;
  if (c < 0x80)
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
      return !IsNewerPunctuation(c);
    default:
      return false;
  }
}

bool IsNonspacingMark(char32_t c) {
  if (c == 0x1734) return true;  // no longer, but still so in the library
  return utf8proc_category(static_cast<utf8proc_int32_t>(c)) == UTF8PROC_CATEGORY_MN && !IsNewerNonspacingMark(c);
}

bool IsCombiningMark(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
      return !IsNewerCombiningMark(c);
    default:
      return c == 0x1CF2 || c == 0x1CF3;  // no longer, but still so in the library
  }
}

bool IsUnicodeControl(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CO:
      return !IsNewerControl(c);
    default:
      return false;
  }
}

bool IsWordCharacter(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      // Join_Control, and the symbols that are Other_Alphabetic (circled and squared letters).
      return c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
             (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
  }
}

std::string NormalizeUnicode(std::string_view text, NormalizationForm form) {
  if (IsAscii(text)) return std::string(text);
  const bool compatible = form == NormalizationForm::kNfkc || form == NormalizationForm::kNfkd;
  const bool compose = form == NormalizationForm::kNfc || form == NormalizationForm::kNfkc;
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE |
                                                      (compatible ? UTF8PROC_COMPAT : utf8proc_option_t{}));
  std::vector<utf8proc_int32_t> code_points;
  code_points.reserve(text.size());
  std::array<utf8proc_int32_t, 64> decomposed;
  for (size_t pos = 0; pos < text.size();) {
    const auto c = static_cast<utf8proc_int32_t>(NextCodePoint(text, &pos));
    if (c < 0x80 || HasNewerDecomposition(static_cast<char32_t>(c))) {
      code_points.push_back(c);
      continue;
    }
    int boundary = 0;
    const auto count = utf8proc_decompose_char(c, decomposed.data(), decomposed.size(), options, &boundary);
    WINNOW_CHECK(count >= 0 && count <= static_cast<utf8proc_ssize_t>(decomposed.size()));
    code_points.insert(code_points.end(), decomposed.begin(), decomposed.begin() + count);
  }
  OrderCombiningMarks(&code_points);
  if (compose) {
    const auto count = utf8proc_normalize_utf32(code_points.data(), static_cast<utf8proc_ssize_t>(code_points.size()),
                                                static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    WINNOW_CHECK(count >= 0);
    code_points.resize(static_cast<size_t>(count));
  }
  std::string out;
  out.reserve(text.size());
  for (const auto c : code_points) AppendUtf8(static_cast<char32_t>(c), &out);
  return out;
}

std::string WithoutCharacters(std::string_view text, bool (*predicate)(char32_t)) {
  std::string out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const size_t begin = pos;
    if (!predicate(NextCodePoint(text, &pos))) out.append(text.substr(begin, pos - begin));
  }
  return out;
}

std::string_view GraphemeCutter::Next() {
  if (rest_.empty()) return {};
  utf8proc_int32_t state = 0;
  size_t end = 0;
  auto previous = static_cast<utf8proc_int32_t>(NextCodePoint(rest_, &end));
  for (size_t pos = end; pos < rest_.size(); end = pos) {
    const auto c = static_cast<utf8proc_int32_t>(NextCodePoint(rest_, &pos));
    if (utf8proc_grapheme_break_stateful(previous, c, &state)) break;
    previous = c;
  }
  const std::string_view cluster = rest_.substr(0, end);
  rest_.remove_prefix(end);
  return cluster;
}

std::string LowercaseUnicode(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = NextCodePoint(text, &pos);
    AppendUtf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))), &out);
    if (c == 0x130) AppendUtf8(0x307, &out);  // the only character whose lowercase form is two characters: i, dot above
  }
  return out;
}

}  // namespace winnow
