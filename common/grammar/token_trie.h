#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace winnow {

class Tokenizer;

// The tokens of a vocabulary by the bytes that they stand for, as a trie in depth-first order: what begins alike is
// looked at once. Const and thread-safe.
class TokenTrie {
 public:
  struct Node {
    uint8_t byte = 0;          // of the edge that leads here
    uint32_t end = 0;          // of its subtree: the first node behind it
    uint32_t first_token = 0;  // of its tokens, which end where the next node's begin
  };

  // `bytes[id]` is what token `id` stands for; tokens of no bytes are in no text, and neither are those of `special`.
  TokenTrie(std::vector<std::string> bytes, const std::vector<uint32_t>& special);
  // Of a model whose logits have `vocab_size` entries. `more_special`: tokens that end an answer, say, whether or not
  // the tokenizer calls them special.
  static TokenTrie Of(const Tokenizer& tokenizer, uint32_t vocab_size, const std::vector<uint32_t>& more_special);

  uint32_t vocab_size() const { return static_cast<uint32_t>(bytes_.size()); }
  // Also of special ones.
  std::string_view bytes(uint32_t id) const { return bytes_[id]; }
  bool is_special(uint32_t id) const { return is_special_[id]; }

  uint32_t num_nodes() const { return static_cast<uint32_t>(nodes_.size() - 1); }
  const Node& node(uint32_t index) const { return nodes_[index]; }
  std::span<const uint32_t> tokens(uint32_t index) const {
    return {tokens_.data() + nodes_[index].first_token, nodes_[index + 1].first_token - nodes_[index].first_token};
  }

 private:
  std::vector<std::string> bytes_;
  std::vector<bool> is_special_;
  std::vector<Node> nodes_;  // and one behind the last
  std::vector<uint32_t> tokens_;
};

}  // namespace winnow
