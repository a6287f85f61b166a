#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/tokenizer/json_node.h"

namespace winnow {

// What turns a word into ids, once the text has been normalized and split. Const and thread-safe.
class TokenModel {
 public:
  virtual ~TokenModel() = default;

  // Appends the ids of one word, which is valid UTF-8. An error only when an unknown token is needed and there is none.
  virtual absl::Status EncodeWord(std::string_view word, std::vector<uint32_t>* ids) const = 0;

  virtual std::optional<uint32_t> TokenId(std::string_view token) const = 0;
  // Absent when no token has this id. Valid while the model lives.
  virtual std::optional<std::string_view> Token(uint32_t id) const = 0;
  // One more than the highest id.
  virtual uint32_t IdEnd() const = 0;

  // A token stands for at most as many characters of a word as it has itself; of all tokens the most, at least 1.
  virtual size_t LongestTokenCharacters() const = 0;
  // Whether no character of a word is ever dropped or fused with others into one unknown token: of any word, and of
  // words of the byte-level alphabet.
  virtual bool KnowsEveryCharacter() const = 0;
  virtual bool KnowsByteLevelAlphabet() const = 0;
};

// The `model` of tokenizer.json: BPE, Unigram or WordPiece; any other type is an Unimplemented error that names it.
absl::StatusOr<std::unique_ptr<TokenModel>> ParseTokenModel(const JsonNode& node);

}  // namespace winnow
