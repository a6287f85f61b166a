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
#include "common/tokenizer/bpe_model.h"
#include "common/tokenizer/decoder.h"
#include "common/tokenizer/json_node.h"
#include "common/tokenizer/normalizer.h"
#include "common/tokenizer/post_processor.h"
#include "common/tokenizer/pre_tokenizer.h"

namespace winnow {

// Runs a Hugging Face tokenizer.json with a BPE model, with the results of the `tokenizers` library to the id:
// added tokens are cut out, the rest is normalized, pre-tokenized, encoded word by word, and post-processed.
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
  // SHA-256 of the file, in lower-case hex.
  const std::string& Digest() const { return digest_; }

 private:
  friend class Detokenizer;

  Tokenizer() = default;
  absl::Status ParseDocument(const JsonNode& root);
  absl::Status ParseAddedTokens(const JsonNode& list);
  absl::Status BuildMatchers();
  absl::Status SplitAddedTokens(std::string_view text, PieceList* out) const;
  // No text whose added tokens are cut out becomes fewer tokens than this.
  size_t FewestTokens(const PieceList& list) const;

  // Constant after Parse.
  std::string digest_;
  uint32_t id_end_ = 0;
  std::vector<AddedToken> added_;
  absl::flat_hash_map<uint32_t, const AddedToken*> added_by_id_;
  absl::flat_hash_map<std::string, uint32_t> added_ids_;
  std::unique_ptr<AddedTokenMatcher> raw_matcher_;         // tokens looked for before normalization
  std::unique_ptr<AddedTokenMatcher> normalized_matcher_;  // and after it
  std::unique_ptr<Normalizer> normalizer_;                 // may be null, as the next one
  std::unique_ptr<PreTokenizer> pre_tokenizer_;
  std::unique_ptr<BpeModel> model_;  // self-synchronised
  bool keeps_text_ = false;          // every character of a word ends up in a token of its own or one that it shares
  PostProcessor post_processor_;
  Decoder decoder_;
};

}  // namespace winnow
