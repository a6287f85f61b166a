#include "common/tokenizer/detokenizer.h"

#include <algorithm>
#include <utility>

namespace winnow {

Detokenizer::Detokenizer(const Tokenizer* tokenizer, bool skip_special, std::vector<uint32_t> shown_special)
    : tokenizer_(tokenizer),
      skip_special_(skip_special),
      shown_special_(std::move(shown_special)),
      stream_(tokenizer->decoder_.NewStream()) {}

bool Detokenizer::Skips(uint32_t id) const {
  return skip_special_ && tokenizer_->IsSpecial(id) &&
         std::find(shown_special_.begin(), shown_special_.end(), id) == shown_special_.end();
}

std::string Detokenizer::Push(uint32_t id) {
  std::string text;
  const auto token = tokenizer_->Token(id);
  if (token.has_value() && !Skips(id)) stream_.Push(*token, &text);
  return text;
}

std::string Detokenizer::Flush() {
  std::string text;
  stream_.Finish(&text);
  return text;
}

}  // namespace winnow
