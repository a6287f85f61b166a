#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/tokenizer/json_node.h"
#include "common/tokenizer/model/byte_trie.h"
#include "common/tokenizer/model/token_model.h"
#include "common/tokenizer/model/vocabulary.h"

namespace winnow {

// BERT's WordPiece: the longest token that a word starts with, then the longest continuation, and so on. A word that
// cannot be cut so to its end, or is too long, becomes one unknown token.
class WordPieceModel final : public TokenModel {
 public:
  struct Options {
    std::string unk_token = "[UNK]";
    std::string continuing_subword_prefix = "##";
    size_t max_input_chars_per_word = 100;
  };

  WordPieceModel(Vocabulary vocabulary, Options options);
  // The `model` of tokenizer.json, type WordPiece.
  static absl::StatusOr<std::unique_ptr<WordPieceModel>> Parse(const JsonNode& node);

  absl::Status EncodeWord(std::string_view word, std::vector<uint32_t>* ids) const override;
  std::optional<uint32_t> TokenId(std::string_view token) const override { return vocabulary_.TokenId(token); }
  std::optional<std::string_view> Token(uint32_t id) const override { return vocabulary_.Token(id); }
  uint32_t IdEnd() const override { return vocabulary_.IdEnd(); }
  size_t LongestTokenCharacters() const override { return vocabulary_.LongestTokenCharacters(); }
  bool KnowsEveryCharacter() const override { return false; }
  bool KnowsByteLevelAlphabet() const override { return false; }

 private:
  // Appends the tokens of a word; false, and an undefined tail of ids, when it cannot be cut to its end.
  bool Cut(std::string_view word, std::vector<uint32_t>* ids) const;

  Vocabulary vocabulary_;
  Options options_;
  ByteTrie trie_;
  uint32_t continuation_ = ByteTrie::kNone;  // the node behind the prefix of continuations
};

}  // namespace winnow
