#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

#include "common/base/status.h"
#include "common/tokenizer/utf8.h"

namespace winnow {

// A place in a text that is being parsed, which is valid UTF-8. Complaints name it.
class TextCursor {
 public:
  explicit TextCursor(std::string_view text) : text_(text) {}

  bool at_end() const { return at_ == text_.size(); }
  size_t offset() const { return at_; }
  std::string_view rest() const { return text_.substr(at_); }
  // The byte here, or 0 at the end.
  char peek() const { return at_end() ? '\0' : text_[at_]; }
  void Skip(size_t bytes) { at_ += bytes; }
  bool Take(std::string_view token) {
    if (!rest().starts_with(token)) return false;
    at_ += token.size();
    return true;
  }
  // The next character, where there is one.
  char32_t TakeCharacter() { return NextCodePoint(text_, &at_); }

  // So many hexadecimal digits.
  std::optional<char32_t> TakeHex(int digits) {
    char32_t value = 0;
    for (int i = 0; i < digits; ++i) {
      const char c = static_cast<size_t>(i) < rest().size() ? rest()[i] : '\0';
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) return std::nullopt;
      value = value * 16 + static_cast<char32_t>(digit);
    }
    at_ += static_cast<size_t>(digits);
    return value;
  }
  // A decimal number up to a million.
  std::optional<uint32_t> TakeNumber() {
    uint32_t value = 0;
    size_t digits = 0;
    for (; digits < rest().size() && rest()[digits] >= '0' && rest()[digits] <= '9'; ++digits) {
      value = value * 10 + static_cast<uint32_t>(rest()[digits] - '0');
      if (value > 1'000'000) return std::nullopt;
    }
    if (digits == 0) return std::nullopt;
    at_ += digits;
    return value;
  }

  absl::Status Error(std::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(AbslSv(what), " at byte ", at_));
  }

 private:
  std::string_view text_;
  size_t at_ = 0;
};

// The bounds of a repetition.
struct RepeatBounds {
  uint32_t min = 0;
  std::optional<uint32_t> max;
};

// `*`, `+`, `?`, `{m}`, `{m,}` or `{m,n}` where the cursor is; nullopt when there is none.
absl::StatusOr<std::optional<RepeatBounds>> TakeRepeatBounds(TextCursor& cursor);

}  // namespace winnow
