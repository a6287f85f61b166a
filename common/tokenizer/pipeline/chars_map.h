#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace winnow {

// SentencePiece's compiled normalization rules (`precompiled_charsmap`): character sequences and what they become. The
// file has them as a double-array trie of 32-bit units behind its size in bytes, then the replacements, each ended by a
// zero byte. Const and thread-safe; whatever the file says, nothing outside of it is read.
class CharsMap {
 public:
  // No rules.
  CharsMap() = default;
  // InvalidArgument says at which byte of `blob` it is damaged.
  static absl::StatusOr<CharsMap> Parse(std::string_view blob);

  struct Match {
    size_t bytes;  // of the text, at least 1
    std::string_view replacement;
  };
  // The rule for the longest, or for the shortest, sequence that `text` starts with.
  std::optional<Match> LongestPrefix(std::string_view text) const { return Find(text, /*longest=*/true); }
  std::optional<Match> ShortestPrefix(std::string_view text) const { return Find(text, /*longest=*/false); }

 private:
  std::optional<Match> Find(std::string_view text, bool longest) const;

  std::vector<uint32_t> units_;
  std::string replacements_;  // ends in a zero byte when there are units; every value is an offset below its size
};

}  // namespace winnow
