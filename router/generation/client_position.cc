#include "router/generation/client_position.h"

#include <algorithm>

namespace winnow {

bool ClientPosition::Trim(TextDelta* delta) {
  const uint64_t begin = said_bytes_;
  said_bytes_ += delta->text.size();
  const bool has_tokens = !delta->tokens.empty() && delta->first_index < next_index_;
  if (has_tokens) delta->tokens.clear();
  if (text_bytes_) {
    const uint64_t known = std::clamp(*text_bytes_, begin, said_bytes_) - begin;
    delta->text.erase(0, known);
  } else if (has_tokens) {
    delta->text.clear();
  }
  if (has_tokens) delta->first_index = next_index_;
  return !delta->tokens.empty() || !delta->text.empty();
}

}  // namespace winnow
