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
#include "common/tokenizer/model/token_model.h"
#include "common/tokenizer/model/vocabulary.h"

namespace winnow {

// The `model` of tokenizer.json, type BPE. Const and thread-safe; remembers recent words in a bounded cache.
//
// A word is cut into characters; then the adjacent pair of lowest merge rank is merged, the leftmost of several, until
// none is left. Words up to kScanSymbols characters are scanned per merge, longer ones go through a heap: O(n log n).
class BpeModel final : public TokenModel {
 public:
  static absl::StatusOr<std::unique_ptr<BpeModel>> Parse(const JsonNode& node);

  absl::Status EncodeWord(std::string_view word, std::vector<uint32_t>* ids) const override;
  std::optional<uint32_t> TokenId(std::string_view token) const override { return vocabulary_.TokenId(token); }
  std::optional<std::string_view> Token(uint32_t id) const override { return vocabulary_.Token(id); }
  uint32_t IdEnd() const override { return vocabulary_.IdEnd(); }
  size_t LongestTokenCharacters() const override { return vocabulary_.LongestTokenCharacters(); }
  bool KnowsEveryCharacter() const override;
  bool KnowsByteLevelAlphabet() const override;

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
  static constexpr uint32_t kNoId = Vocabulary::kNoId;

  BpeModel() = default;
  absl::Status ParseMerges(const JsonNode& node);
  absl::Status ParseOptions(const JsonNode& node);

  absl::Status FirstSymbols(std::string_view word, std::vector<uint32_t>* symbols) const;
  uint32_t CharacterId(std::string_view character) const;
  const Merge* FindMerge(uint32_t left, uint32_t right) const;
  void MergeByScan(std::vector<uint32_t>* symbols) const;
  void MergeByHeap(std::vector<uint32_t>* symbols) const;

  // Constant after Parse.
  Vocabulary vocabulary_;
  absl::flat_hash_map<uint64_t, Merge> merges_;           // left id << 32 | right id
  std::array<uint32_t, kDirectCharacters> direct_ids_{};  // ids of single characters below kDirectCharacters
  std::string word_prefix_;                               // continuing_subword_prefix
  std::string word_suffix_;                               // end_of_word_suffix
  std::string unk_token_;                                 // empty: characters without a token are dropped
  bool fuse_unk_ = false;
  bool byte_fallback_ = false;
  bool ignore_merges_ = false;

  // Synchronised by the shards' mutexes.
  mutable std::array<CacheShard, kCacheShards> cache_;
};

}  // namespace winnow
