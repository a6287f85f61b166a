#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/base/status.h"
#include "common/tokenizer/added_vocabulary.h"
#include "common/tokenizer/model/token_model.h"
#include "common/tokenizer/pipeline/decoder.h"
#include "common/tokenizer/pipeline/normalizer.h"
#include "common/tokenizer/pipeline/post_processor.h"
#include "common/tokenizer/pipeline/pre_tokenizer.h"

namespace winnow {

// What a tokenizer is made of.
struct TokenizerParts {
  std::unique_ptr<Normalizer> normalizer;       // may be null
  std::unique_ptr<PreTokenizer> pre_tokenizer;  // may be null
  std::unique_ptr<TokenModel> model;
  PostProcessor post_processor;
  Decoder decoder;
  // A token that the model knows keeps the model's id, whatever is said here.
  std::vector<AddedToken> added_tokens;
  std::string digest;  // SHA-256 of the files that the parts were read from, in lower-case hex
};

// Runs a Hugging Face tokenizer.json with a BPE, Unigram or WordPiece model, with the results of the `tokenizers`
// library to the id: added tokens are cut out, the rest is normalized, pre-tokenized, encoded word by word, and
// post-processed.
//
// The text of a special token inside user content becomes that special token, as it does in the library: whoever must
// not let users write special tokens has to refuse such texts before. `truncation` and `padding` of the file are
// ignored; limits are the caller's.
//
// Const and thread-safe.
class Tokenizer {
 public:
  // InvalidArgument or Unimplemented names the file, the JSON path and what is wrong there.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const std::string& path);
  // The same from the file's bytes; `name` stands for the file in errors.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Parse(std::string_view json, std::string_view name);

  // InvalidArgument when ids contradict each other.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Assemble(TokenizerParts parts);

  static constexpr size_t kAnyNumber = SIZE_MAX;

  // Ids of a text. InvalidArgument with the byte offset when it is not UTF-8. OutOfRange when there are certainly more
  // than `max_tokens`, special ones not counted; with most tokenizers the length of a text that is far too long says so
  // before any of it is tokenized.
  absl::StatusOr<std::vector<uint32_t>> Encode(std::string_view text, bool add_special_tokens,
                                               size_t max_tokens = kAnyNumber) const;

  // The text of ids, valid UTF-8. Ids without a token add nothing.
  std::string Decode(const std::vector<uint32_t>& ids, bool skip_special) const;

  // The bytes that a token adds in the middle of a text; alone they need not be UTF-8. Empty when there is no such id.
  std::string TokenBytes(uint32_t id) const;
  // A token as the vocabulary spells it.
  std::optional<std::string_view> Token(uint32_t id) const;
  std::optional<uint32_t> TokenId(std::string_view content) const;
  bool IsSpecial(uint32_t id) const;
  // One more than the highest id of a token. A model's logits may be wider.
  uint32_t VocabSize() const { return id_end_; }
  // SHA-256 of the files that it was read from, in lower-case hex.
  const std::string& Digest() const { return digest_; }

 private:
  friend class Detokenizer;

  Tokenizer() = default;
  absl::Status Build(TokenizerParts parts);
  absl::Status AddToken(AddedToken token);
  absl::Status BuildMatchers();
  absl::Status SplitAddedTokens(std::string_view text, PieceList* out) const;
  // No text whose added tokens are cut out becomes fewer tokens than this.
  size_t FewestTokens(const PieceList& list) const;

  // Constant after Parse.
  std::string digest_;
  uint32_t id_end_ = 0;
  std::vector<AddedToken> added_;  // has room for all from the start: pointers into it are kept
  absl::flat_hash_map<uint32_t, const AddedToken*> added_by_id_;
  absl::flat_hash_map<std::string, uint32_t> added_ids_;
  std::unique_ptr<AddedTokenMatcher> raw_matcher_;         // tokens looked for before normalization
  std::unique_ptr<AddedTokenMatcher> normalized_matcher_;  // and after it
  std::unique_ptr<Normalizer> normalizer_;                 // may be null, as the next one
  std::unique_ptr<PreTokenizer> pre_tokenizer_;
  std::unique_ptr<TokenModel> model_;  // self-synchronised
  bool keeps_text_ = false;            // every character of a word ends up in a token of its own or one that it shares
  PostProcessor post_processor_;
  Decoder decoder_;
};

// SHA-256 in lower-case hex.
std::string Sha256Hex(std::string_view bytes);

}  // namespace winnow
