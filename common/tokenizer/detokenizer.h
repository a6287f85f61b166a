#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "common/tokenizer/tokenizer.h"

namespace winnow {

// Decodes a growing sequence of ids. Not thread-safe; the tokenizer must outlive it.
//
// Each piece is valid UTF-8 and final. What later ids may change is held back: an unfinished UTF-8 sequence, a run of
// byte tokens that is valid so far (one wrong byte turns the whole run into U+FFFD), the possible start of a text that
// the decoder replaces. All pieces and Flush() together equal Tokenizer::Decode of all ids. O(1) amortised per id.
class Detokenizer {
 public:
  // `shown_special`: special tokens that are not skipped.
  Detokenizer(const Tokenizer* tokenizer, bool skip_special, std::vector<uint32_t> shown_special = {});

  // The text that has become final with this id; often empty.
  std::string Push(uint32_t id);
  // What was held back; ends the text. Called once, nothing is pushed after it.
  std::string Flush();

 private:
  bool Skips(uint32_t id) const;

  const Tokenizer* const tokenizer_;
  const bool skip_special_;
  const std::vector<uint32_t> shown_special_;
  DecodeStream stream_;
};

}  // namespace winnow
