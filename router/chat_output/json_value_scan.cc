#include "router/chat_output/json_value_scan.h"

namespace winnow {

size_t JsonValueScan::Push(std::string_view text) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (done_) return i;
    const char c = text[i];
    if (kind_ == Kind::kUnknown) {
      kind_ = c == '{' || c == '[' ? Kind::kNested : c == '"' ? Kind::kString : Kind::kWord;
    }
    if (kind_ == Kind::kWord) {
      if (std::string_view(",}] \t\r\n").find(c) != std::string_view::npos) {
        done_ = true;
        return i;
      }
    } else if (in_string_) {
      if (escaped_) {
        escaped_ = false;
      } else if (c == '\\') {
        escaped_ = true;
      } else if (c == '"') {
        in_string_ = false;
        done_ = depth_ == 0;
      }
    } else if (c == '"') {
      in_string_ = true;
    } else if (c == '{' || c == '[') {
      ++depth_;
    } else if (c == '}' || c == ']') {
      done_ = --depth_ == 0;
    }
  }
  return text.size();
}

}  // namespace winnow
