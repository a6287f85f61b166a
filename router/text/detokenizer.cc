#include "router/text/detokenizer.h"

namespace winnow {

Detokenizer::Detokenizer(const Tokenizer* tokenizer, bool skip_special)
    : tokenizer_(tokenizer), skip_special_(skip_special), stream_(tokenizer->decoder_.NewStream()) {}

std::string Detokenizer::Push(uint32_t id) {
  std::string text;
  const auto token = tokenizer_->Token(id);
  if (token.has_value() && !(skip_special_ && tokenizer_->IsSpecial(id))) stream_.Push(*token, &text);
  return text;
}

std::string Detokenizer::Flush() {
  std::string text;
  stream_.Finish(&text);
  return text;
}

}  // namespace winnow
