#include "common/tokenizer/model/word_piece_model.h"

#include <utility>

#include "common/tokenizer/utf8.h"

namespace winnow {

WordPieceModel::WordPieceModel(Vocabulary vocabulary, Options options)
    : vocabulary_(std::move(vocabulary)), options_(std::move(options)) {
  std::vector<ByteTrie::Entry> keys;
  for (uint32_t id = 0; id < vocabulary_.IdEnd(); ++id) {
    // A line of vocab.txt may repeat a token: the id that the token is looked up with counts.
    const auto token = vocabulary_.Token(id);
    if (token.has_value() && TokenId(*token) == id) keys.push_back({*token, id});
  }
  trie_ = ByteTrie(std::move(keys));
  continuation_ = trie_.Find(ByteTrie::kRoot, options_.continuing_subword_prefix);
}

absl::StatusOr<std::unique_ptr<WordPieceModel>> WordPieceModel::Parse(const JsonNode& node) {
  Options options;
  WINNOW_ASSIGN_OR_RETURN(options.unk_token, node.String("unk_token"));
  WINNOW_ASSIGN_OR_RETURN(options.continuing_subword_prefix, node.String("continuing_subword_prefix"));
  WINNOW_ASSIGN_OR_RETURN(options.max_input_chars_per_word, node.Uint32("max_input_chars_per_word"));
  WINNOW_ASSIGN_OR_RETURN(Vocabulary vocabulary, Vocabulary::Parse(node));
  return std::make_unique<WordPieceModel>(std::move(vocabulary), std::move(options));
}

bool WordPieceModel::Cut(std::string_view word, std::vector<uint32_t>* ids) const {
  for (size_t begin = 0; begin < word.size();) {
    uint32_t node = begin == 0 ? ByteTrie::kRoot : continuation_;
    uint32_t longest = ByteTrie::kNone;
    size_t longest_end = begin;
    for (size_t end = begin; node != ByteTrie::kNone && end < word.size();) {
      node = trie_.Next(node, word[end++]);
      if (node == ByteTrie::kNone || trie_.Value(node) == ByteTrie::kNone) continue;
      longest = trie_.Value(node);
      longest_end = end;
    }
    if (longest == ByteTrie::kNone) return false;
    ids->push_back(longest);
    begin = longest_end;
  }
  return true;
}

absl::Status WordPieceModel::EncodeWord(std::string_view word, std::vector<uint32_t>* ids) const {
  const size_t before = ids->size();
  if (CountCodePoints(word) <= options_.max_input_chars_per_word && Cut(word, ids)) return absl::OkStatus();
  ids->resize(before);
  const auto unk = TokenId(options_.unk_token);
  if (!unk) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.unk_token \"", options_.unk_token, "\" is not in the vocabulary"));
  }
  ids->push_back(*unk);
  return absl::OkStatus();
}

}  // namespace winnow
