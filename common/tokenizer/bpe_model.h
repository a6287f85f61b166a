#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/base/status.h"
#include "common/tokenizer/json_node.h"

namespace winnow {

// The `model` of tokenizer.json, type BPE. Const and thread-safe; remembers recent words in a bounded cache.
//
// A word is cut into characters; then the adjacent pair of lowest merge rank is merged, the leftmost of several, until
// none is left. Words up to kScanSymbols characters are scanned per merge, longer ones go through a heap: O(n log n).
class BpeModel {
 public:
  static absl::StatusOr<std::unique_ptr<BpeModel>> Parse(const JsonNode& node);

  // Appends the ids of one word. An error only when unk_token is needed and not in the vocabulary.
  absl::Status EncodeWord(std::string_view word, std::vector<uint32_t>* ids) const;

  std::optional<uint32_t> TokenId(std::string_view token) const;
  // Null when no token has this id. Valid while the model lives.
  std::optional<std::string_view> Token(uint32_t id) const;
  // One more than the highest id.
  uint32_t IdEnd() const { return static_cast<uint32_t>(tokens_.size()); }
  bool byte_fallback() const { return byte_fallback_; }
  // A token stands for at most as many characters of a word as it has itself; of all tokens the most, at least 1.
  size_t LongestTokenCharacters() const { return longest_token_characters_; }
  // Whether no character of a word is ever dropped or fused with others into one unknown token: of any word, and of
  // words of the byte-level alphabet.
  bool KnowsEveryCharacter() const;
  bool KnowsByteLevelAlphabet() const;

 private:
  struct Merge {
    uint32_t rank;
    uint32_t id;
  };
  struct CacheShard {
    std::mutex mutex;
    absl::flat_hash_map<std::string, std::vector<uint32_t>> words;  // guarded by mutex
  };
  static constexpr size_t kCacheShards = 16;
  static constexpr size_t kCacheWordsPerShard = 4096;
  static constexpr size_t kCacheWordBytes = 128;  // longer words are not remembered
  static constexpr size_t kScanSymbols = 32;
  static constexpr char32_t kDirectCharacters = 0x400;
  static constexpr uint32_t kNoId = UINT32_MAX;

  BpeModel() = default;
  absl::Status ParseVocabulary(const JsonNode& node);
  absl::Status ParseMerges(const JsonNode& node);
  absl::Status ParseOptions(const JsonNode& node);

  absl::Status FirstSymbols(std::string_view word, std::vector<uint32_t>* symbols) const;
  uint32_t CharacterId(std::string_view character) const;
  const Merge* FindMerge(uint32_t left, uint32_t right) const;
  void MergeByScan(std::vector<uint32_t>* symbols) const;
  void MergeByHeap(std::vector<uint32_t>* symbols) const;

  // Constant after Parse.
  std::string arena_;                     // all tokens, one after another
  std::vector<std::string_view> tokens_;  // by id, in arena_; data() null where no token has the id
  absl::flat_hash_map<absl::string_view, uint32_t> ids_;
  absl::flat_hash_map<uint64_t, Merge> merges_;           // left id << 32 | right id
  std::array<uint32_t, kDirectCharacters> direct_ids_{};  // ids of single characters below kDirectCharacters
  std::array<uint32_t, 256> byte_ids_{};                  // ids of <0x00>..<0xFF>
  size_t longest_token_characters_ = 1;
  std::string word_prefix_;  // continuing_subword_prefix
  std::string word_suffix_;  // end_of_word_suffix
  std::string unk_token_;    // empty: characters without a token are dropped
  bool fuse_unk_ = false;
  bool byte_fallback_ = false;
  bool ignore_merges_ = false;

  // Synchronised by the shards' mutexes.
  mutable std::array<CacheShard, kCacheShards> cache_;
};

}  // namespace winnow
