#include "router/text/chat_template/text_functions.h"

#include <utf8proc.h>

#include <algorithm>

#include "common/tokenizer/unicode.h"
#include "common/tokenizer/utf8.h"

namespace winnow::chat_template {
namespace {

void AppendUpper(char32_t c, std::string* out) {
  if (c == 0xDF) {
    out->append("SS");
    return;
  }
  AppendUtf8(static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))), out);
}

void AppendLower(char32_t c, std::string* out) {
  AppendUtf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))), out);
}

bool IsCased(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
      return true;
    default:
      return false;
  }
}

// Upper case where a word starts, lower case inside.
template <typename StartsWord>
std::string MapWords(std::string_view s, const StartsWord& starts_word) {
  std::string out;
  char32_t previous = 0;
  for (size_t pos = 0; pos < s.size();) {
    const bool first = pos == 0;
    const char32_t c = NextCodePoint(s, &pos);
    if (starts_word(first, previous)) {
      AppendUpper(c, &out);
    } else {
      AppendLower(c, &out);
    }
    previous = c;
  }
  return out;
}

}  // namespace

bool IsPythonSpace(char32_t c) {
  return IsUnicodeWhitespace(c) || (c >= 0x1C && c <= 0x1F);
}

std::string_view StripText(std::string_view s, std::optional<std::string_view> chars, bool left, bool right) {
  const auto strips = [&](char32_t c) {
    if (!chars.has_value()) return IsPythonSpace(c);
    for (size_t pos = 0; pos < chars->size();) {
      if (NextCodePoint(*chars, &pos) == c) return true;
    }
    return false;
  };
  while (left && !s.empty()) {
    size_t pos = 0;
    if (!strips(NextCodePoint(s, &pos))) break;
    s.remove_prefix(pos);
  }
  while (right && !s.empty()) {
    size_t begin = s.size() - 1;
    while (begin > 0 && (static_cast<unsigned char>(s[begin]) & 0xC0) == 0x80) --begin;
    size_t pos = begin;
    if (!strips(NextCodePoint(s, &pos))) break;
    s = s.substr(0, begin);
  }
  return s;
}

std::vector<std::string> SplitWords(std::string_view s, int64_t max_splits) {
  std::vector<std::string> words;
  s = StripText(s, std::nullopt, true, false);
  while (!s.empty()) {
    if (max_splits >= 0 && static_cast<int64_t>(words.size()) == max_splits) {
      words.emplace_back(StripText(s, std::nullopt, false, true));
      break;
    }
    size_t end = 0;
    for (size_t pos = 0; pos < s.size() && !IsPythonSpace(NextCodePoint(s, &pos));) end = pos;
    words.emplace_back(s.substr(0, end));
    s = StripText(s.substr(end), std::nullopt, true, false);
  }
  return words;
}

std::vector<std::string> SplitText(std::string_view s, std::string_view separator, int64_t max_splits,
                                   bool from_right) {
  std::vector<std::string> parts;
  const auto more = [&] { return max_splits < 0 || static_cast<int64_t>(parts.size()) < max_splits; };
  if (from_right) {
    for (size_t at; more() && (at = s.rfind(separator)) != s.npos; s = s.substr(0, at)) {
      parts.emplace_back(s.substr(at + separator.size()));
    }
    parts.emplace_back(s);
    std::reverse(parts.begin(), parts.end());
    return parts;
  }
  for (size_t at; more() && (at = s.find(separator)) != s.npos; s.remove_prefix(at + separator.size())) {
    parts.emplace_back(s.substr(0, at));
  }
  parts.emplace_back(s);
  return parts;
}

std::vector<std::string> SplitLines(std::string_view s) {
  std::vector<std::string> lines;
  size_t begin = 0;
  for (size_t pos = 0; pos < s.size();) {
    const size_t at = pos;
    const char32_t c = NextCodePoint(s, &pos);
    const bool breaks = (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
    if (!breaks) continue;
    lines.emplace_back(s.substr(begin, at - begin));
    if (c == '\r' && pos < s.size() && s[pos] == '\n') ++pos;
    begin = pos;
  }
  if (begin < s.size()) lines.emplace_back(s.substr(begin));
  return lines;
}

std::optional<std::string> ReplaceText(std::string_view s, std::string_view from, std::string_view to, int64_t count,
                                       size_t max_bytes) {
  std::string out;
  size_t done = 0;
  int64_t replaced = 0;
  if (from.empty()) {  // between all characters
    for (size_t pos = 0; count < 0 || replaced < count; ++replaced) {
      out.append(to);
      if (out.size() > max_bytes) return std::nullopt;
      done = pos;
      if (pos >= s.size()) break;
      NextCodePoint(s, &pos);
      out.append(s.substr(done, pos - done));
      done = pos;
    }
  } else {
    for (size_t at; (count < 0 || replaced < count) && (at = s.find(from, done)) != s.npos; ++replaced) {
      out.append(s.substr(done, at - done)).append(to);
      done = at + from.size();
      if (out.size() > max_bytes) return std::nullopt;
    }
  }
  out.append(s.substr(done));
  return out;
}

std::string UpperText(std::string_view s) {
  std::string out;
  for (size_t pos = 0; pos < s.size();) AppendUpper(NextCodePoint(s, &pos), &out);
  return out;
}

std::string LowerText(std::string_view s) {
  return LowercaseUnicode(s);
}

std::string CapitalizeText(std::string_view s) {
  return MapWords(s, [](bool first, char32_t) { return first; });
}

std::string TitleText(std::string_view s) {
  return MapWords(s, [](bool first, char32_t previous) { return first || !IsCased(previous); });
}

std::string TitleFilterText(std::string_view s) {
  return MapWords(s, [](bool first, char32_t previous) {
    return first || previous == '-' || previous == '(' || previous == '{' || previous == '[' || previous == '<' ||
           IsPythonSpace(previous);
  });
}

std::vector<std::string_view> Characters(std::string_view s) {
  std::vector<std::string_view> characters;
  for (size_t pos = 0; pos < s.size();) {
    const size_t bytes = Utf8SequenceBytes(static_cast<unsigned char>(s[pos]));
    characters.push_back(s.substr(pos, bytes));
    pos += bytes;
  }
  return characters;
}

}  // namespace winnow::chat_template
