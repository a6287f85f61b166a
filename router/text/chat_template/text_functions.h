#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// Python's str methods on valid UTF-8, as pure functions.
namespace winnow::chat_template {

bool IsPythonSpace(char32_t c);

// str.strip(chars); no chars: white space.
std::string_view StripText(std::string_view s, std::optional<std::string_view> chars, bool left, bool right);

// str.split() without a separator: words between runs of white space. max_splits < 0: all.
std::vector<std::string> SplitWords(std::string_view s, int64_t max_splits);
// str.split(separator) and str.rsplit(separator); the separator is not empty.
std::vector<std::string> SplitText(std::string_view s, std::string_view separator, int64_t max_splits, bool from_right);
std::vector<std::string> SplitLines(std::string_view s);

// str.replace; count < 0: all. nullopt when the result would be longer than max_bytes.
std::optional<std::string> ReplaceText(std::string_view s, std::string_view from, std::string_view to, int64_t count,
                                       size_t max_bytes);

std::string UpperText(std::string_view s);
std::string LowerText(std::string_view s);
std::string CapitalizeText(std::string_view s);
// str.title: words are runs of letters.
std::string TitleText(std::string_view s);
// Jinja's filter of the same name: words end at white space, "-" and opening brackets.
std::string TitleFilterText(std::string_view s);

// The characters of a text.
std::vector<std::string_view> Characters(std::string_view s);

}  // namespace winnow::chat_template
