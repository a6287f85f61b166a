#pragma once
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/base/status.h"
#include "common/tokenizer/model/byte_trie.h"
#include "common/tokenizer/model/token_model.h"
#include "common/tokenizer/model/vocabulary.h"

namespace winnow {

// Byte-pair encoding without a list of merges, as SentencePiece and tiktoken do it: two neighbours may become one
// piece whenever the vocabulary has their concatenation; the piece of lowest rank first, the leftmost of several.
// O(length × log length).
class RankBpeModel final : public TokenModel {
 public:
  enum class Kind {
    kNormal,
    kUserDefined,  // cut out before anything is merged, and merged with nothing
    kUnused,       // may come into being on the way to a longer piece; at the end it is taken apart again
    kNotInText,    // a control or byte token, found in no text
  };
  struct Piece {
    std::string_view text;
    uint32_t id = 0;    // at most Vocabulary::kMaxId
    uint32_t rank = 0;  // the same for pieces of which the leftmost comes first
    Kind kind = Kind::kNormal;
  };
  struct Options {
    // A run of characters that are in no piece becomes the bytes' tokens or one unknown token.
    std::optional<uint32_t> unk_id;
    bool byte_fallback = false;
    bool whole_words_first = false;  // a word that is a piece is that piece, whatever the merges would give
  };

  RankBpeModel(const std::vector<Piece>& pieces, const Options& options);

  absl::Status EncodeWord(std::string_view word, std::vector<uint32_t>* ids) const override;
  std::optional<uint32_t> TokenId(std::string_view token) const override { return vocabulary_.TokenId(token); }
  std::optional<std::string_view> Token(uint32_t id) const override { return vocabulary_.Token(id); }
  uint32_t IdEnd() const override { return vocabulary_.IdEnd(); }
  size_t LongestTokenCharacters() const override { return vocabulary_.LongestTokenCharacters(); }
  bool KnowsEveryCharacter() const override { return options_.byte_fallback && vocabulary_.HasAllByteTokens(); }
  bool KnowsByteLevelAlphabet() const override;

 private:
  // A part of the word that has become one piece, in a doubly linked list.
  struct Symbol {
    std::string_view text;  // empty: merged into the one before
    uint32_t previous;
    uint32_t next;
    bool user_defined;
  };
  class Merger;

  const Piece* FindPiece(std::string_view text) const;
  std::vector<Symbol> FirstSymbols(std::string_view word) const;

  const Options options_;
  const Vocabulary vocabulary_;
  // Those found in texts; their texts lie in the vocabulary.
  absl::flat_hash_map<absl::string_view, Piece> pieces_;
  ByteTrie user_defined_;
};

}  // namespace winnow
