#pragma once
#include <string>
#include <vector>

#include "common/tokenizer/model/byte_trie.h"
#include "common/tokenizer/pipeline/chars_map.h"
#include "common/tokenizer/pipeline/normalizer.h"

namespace winnow {

// SentencePiece's normalization: compiled rules, the longest that fits first; then its treatment of spaces.
class SentencePieceNormalizer final : public Normalizer {
 public:
  enum class DummyPrefix { kNone, kInputStart, kEveryPart };
  struct Options {
    DummyPrefix dummy_prefix = DummyPrefix::kEveryPart;  // a space before the text,
    bool prefix_is_suffix = false;                       // or behind it
    bool remove_extra_whitespaces = true;                // at both ends, and of several next to each other all but one
    bool escape_whitespaces = true;                      // spaces become U+2581
  };

  // Texts of user-defined pieces are kept as they are.
  SentencePieceNormalizer(CharsMap rules, const std::vector<std::string_view>& user_defined, const Options& options);

  absl::Status Normalize(std::string* text) const override { return NormalizePart(text, /*at_input_start=*/true); }
  absl::Status NormalizePart(std::string* text, bool at_input_start) const override;

 private:
  // The part of `rest`, which is not empty, that is rewritten as a whole, and what it becomes.
  CharsMap::Match Next(std::string_view rest) const;

  const CharsMap rules_;
  const ByteTrie user_defined_;
  const Options options_;
};

}  // namespace winnow
