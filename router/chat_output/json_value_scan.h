#pragma once
#include <string_view>

namespace winnow {

// Finds the end of one JSON value whose text comes in pieces, without looking at what it says: brackets, strings and
// escapes are counted, nothing else is checked.
class JsonValueScan {
 public:
  // Takes bytes up to the value's end; returns how many. The value begins at the first byte, with no white space before
  // it. A number or a word ends before the byte that cannot belong to it, which is not taken.
  size_t Push(std::string_view text);
  bool done() const { return done_; }

 private:
  enum class Kind { kUnknown, kNested, kString, kWord };

  Kind kind_ = Kind::kUnknown;
  int depth_ = 0;
  bool in_string_ = false;
  bool escaped_ = false;
  bool done_ = false;
};

}  // namespace winnow
