#pragma once
#include <string>
#include <string_view>
#include <utility>

#include "router/chat_output/markers.h"

namespace winnow {

// Writes one text of a message whose white space next to markers does not belong to it: space at the end is held back
// until more text shows that it stands inside.
class ContentWriter {
 public:
  void Add(std::string_view text, std::string* out) {
    if (skips_space_) {
      const size_t begin = text.find_first_not_of(kJsonSpace);
      if (begin == text.npos) return;
      text.remove_prefix(begin);
      skips_space_ = false;
    }
    const size_t last = text.find_last_not_of(kJsonSpace);
    if (last == text.npos) {
      space_ += text;
      return;
    }
    *out += space_;
    *out += text.substr(0, last + 1);
    space_ = text.substr(last + 1);
  }

  // A marker follows: what is held is dropped, and so is space that comes next.
  void Break() {
    space_.clear();
    skips_space_ = true;
  }

  // The text is over.
  void Finish(std::string* out) { *out += std::exchange(space_, {}); }

 private:
  std::string space_;
  bool skips_space_ = false;
};

}  // namespace winnow
