#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace winnow {

// A set of token ids, a bit each.
class TokenMask {
 public:
  explicit TokenMask(uint32_t vocab_size) : words_((vocab_size + 63) / 64) {}

  void Add(uint32_t id) { words_[id / 64] |= uint64_t{1} << (id % 64); }
  bool Has(uint32_t id) const { return (words_[id / 64] >> (id % 64) & 1) != 0; }
  void AddAll(const TokenMask& other) {
    for (size_t i = 0; i < words_.size(); ++i) words_[i] |= other.words_[i];
  }
  bool empty() const {
    for (const uint64_t word : words_) {
      if (word != 0) return false;
    }
    return true;
  }
  std::span<const uint64_t> words() const { return words_; }

 private:
  std::vector<uint64_t> words_;
};

}  // namespace winnow
