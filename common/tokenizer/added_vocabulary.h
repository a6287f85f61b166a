#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/tokenizer/regex.h"

namespace winnow {

// An entry of tokenizer.json's `added_tokens`.
struct AddedToken {
  uint32_t id = 0;
  std::string content;       // not empty
  bool special = false;      // left out by Decode(skip_special)
  bool normalized = false;   // looked for in the normalized text instead of the raw one
  bool lstrip = false;       // takes the whitespace before it along
  bool rstrip = false;       // and after it
  bool single_word = false;  // only where no word character touches it
};

// Finds added tokens in a text: leftmost first, the longest of several. Const and thread-safe.
class AddedTokenMatcher {
 public:
  // `tokens` must outlive the matcher; pairs of the text to look for and the token it stands for. Of two equal texts
  // the first wins.
  explicit AddedTokenMatcher(const std::vector<std::pair<std::string, const AddedToken*>>& tokens);

  struct Part {
    TextSpan span;
    const AddedToken* token = nullptr;  // null: text between tokens
  };
  // Parts of `text` in order; a part may be empty only when the text is.
  std::vector<Part> Split(std::string_view text) const;

 private:
  struct Node {
    std::vector<std::pair<unsigned char, uint32_t>> children;
    const AddedToken* token = nullptr;
  };
  // The longest token that starts at `at`, and its end.
  const AddedToken* MatchAt(std::string_view text, size_t at, size_t* end) const;

  std::vector<Node> nodes_;                    // a trie; nodes_[0] is the root
  std::array<uint32_t, 256> root_children_{};  // 0: none
};

}  // namespace winnow
