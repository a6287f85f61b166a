#pragma once
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

namespace winnow {

// A set of byte strings with a value each, to find those that start at one place of a text by walking it byte by byte.
// Const and thread-safe.
class ByteTrie {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr uint32_t kRoot = 0;

  struct Entry {
    std::string_view key;  // empty ones are left out
    uint32_t value = 0;    // not kNone
  };

  ByteTrie() : ByteTrie(std::vector<Entry>()) {}
  // Of equal keys, the first wins.
  explicit ByteTrie(std::vector<Entry> entries);

  // The node one byte further down, kNone where no key goes on so.
  uint32_t Next(uint32_t node, char byte) const {
    const Node& n = nodes_[node];
    if (n.num_children == 0) return kNone;
    const void* found = std::memchr(bytes_.data() + n.first_child, static_cast<unsigned char>(byte), n.num_children);
    return found == nullptr ? kNone : static_cast<uint32_t>(static_cast<const char*>(found) - bytes_.data());
  }
  // The value of the key that ends here, or kNone.
  uint32_t Value(uint32_t node) const { return nodes_[node].value; }
  // The node where the walk over `key` ends, or kNone.
  uint32_t Find(uint32_t node, std::string_view key) const {
    for (size_t i = 0; i < key.size() && node != kNone; ++i) node = Next(node, key[i]);
    return node;
  }

  struct Match {
    uint32_t value = kNone;
    size_t bytes = 0;
  };
  // The longest key that `text` starts with; `bytes` is 0 when there is none.
  Match LongestPrefix(std::string_view text) const;

 private:
  struct Node {
    uint32_t first_child = 0;  // the children lie one behind the other
    uint16_t num_children = 0;
    uint32_t value = kNone;
  };

  std::vector<Node> nodes_;
  std::vector<char> bytes_;  // by node: the byte that leads to it
};

}  // namespace winnow
