#include "common/grammar/token_trie.h"

#include <algorithm>

#include "common/tokenizer/tokenizer.h"

namespace winnow {

TokenTrie::TokenTrie(std::vector<std::string> bytes, const std::vector<uint32_t>& special)
    : bytes_(std::move(bytes)), is_special_(bytes_.size()) {
  for (const uint32_t id : special) {
    if (id < is_special_.size()) is_special_[id] = true;
  }
  for (uint32_t id = 0; id < bytes_.size(); ++id) {
    if (!bytes_[id].empty() && !is_special_[id]) tokens_.push_back(id);
  }
  std::sort(tokens_.begin(), tokens_.end(),
            [&](uint32_t a, uint32_t b) { return std::tie(bytes_[a], a) < std::tie(bytes_[b], b); });
  std::vector<uint32_t> path;  // nodes of the token before
  std::string_view before;
  const auto close_to = [&](size_t depth) {
    while (path.size() > depth) {
      nodes_[path.back()].end = static_cast<uint32_t>(nodes_.size());
      path.pop_back();
    }
  };
  for (uint32_t i = 0; i < tokens_.size(); ++i) {
    const std::string_view text = bytes_[tokens_[i]];
    if (text == before) continue;  // another token of the same node
    const auto [differs, unused] = std::mismatch(before.begin(), before.end(), text.begin(), text.end());
    const size_t shared = static_cast<size_t>(differs - before.begin());
    close_to(shared);
    for (size_t at = shared; at < text.size(); ++at) {
      path.push_back(static_cast<uint32_t>(nodes_.size()));
      nodes_.push_back({.byte = static_cast<uint8_t>(text[at]), .end = 0, .first_token = i});
    }
    before = text;
  }
  close_to(0);
  nodes_.push_back({.byte = 0, .end = 0, .first_token = static_cast<uint32_t>(tokens_.size())});
}

TokenTrie TokenTrie::Of(const Tokenizer& tokenizer, uint32_t vocab_size, const std::vector<uint32_t>& more_special) {
  std::vector<std::string> bytes(vocab_size);
  std::vector<uint32_t> special = more_special;
  for (uint32_t id = 0; id < std::min(vocab_size, tokenizer.VocabSize()); ++id) {
    bytes[id] = tokenizer.TokenBytes(id);
    if (tokenizer.IsSpecial(id)) special.push_back(id);
  }
  return TokenTrie(std::move(bytes), special);
}

}  // namespace winnow
