#include "common/tokenizer/model/byte_trie.h"

#include <algorithm>

namespace winnow {

ByteTrie::ByteTrie(std::vector<Entry> entries) : nodes_(1), bytes_(1) {
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.key < b.key; });
  // Breadth first: the entries of a node are those from begin to end, which agree in their first `depth` bytes.
  struct Range {
    size_t begin, end, depth;
  };
  std::vector<Range> ranges = {{0, entries.size(), 0}};
  for (size_t node = 0; node < ranges.size(); ++node) {
    auto [begin, end, depth] = ranges[node];
    if (begin < end && entries[begin].key.size() == depth && depth > 0) nodes_[node].value = entries[begin].value;
    while (begin < end && entries[begin].key.size() == depth) ++begin;
    nodes_[node].first_child = static_cast<uint32_t>(nodes_.size());
    while (begin < end) {
      const char byte = entries[begin].key[depth];
      const size_t first = begin;
      while (begin < end && entries[begin].key[depth] == byte) ++begin;
      ranges.push_back({first, begin, depth + 1});
      nodes_.emplace_back();
      bytes_.push_back(byte);
      ++nodes_[node].num_children;
    }
  }
}

ByteTrie::Match ByteTrie::LongestPrefix(std::string_view text) const {
  Match best;
  uint32_t node = kRoot;
  for (size_t i = 0; i < text.size(); ++i) {
    node = Next(node, text[i]);
    if (node == kNone) break;
    if (Value(node) != kNone) best = {Value(node), i + 1};
  }
  return best;
}

}  // namespace winnow
