#include "common/tokenizer/model/token_model.h"

#include <string>

#include "common/tokenizer/model/bpe_model.h"
#include "common/tokenizer/model/unigram_model.h"
#include "common/tokenizer/model/word_piece_model.h"

namespace winnow {
namespace {

// Files of old versions do not name the type: they are told apart by the members that the type must have.
std::string_view GuessType(const JsonNode& node) {
  if (node.Has("merges")) return "BPE";
  if (node.Has("max_input_chars_per_word")) return "WordPiece";
  if (node.Has("vocab") && node.value()["vocab"].is_array()) return "Unigram";
  return "BPE";
}

}  // namespace

absl::StatusOr<std::unique_ptr<TokenModel>> ParseTokenModel(const JsonNode& node) {
  WINNOW_RETURN_IF_ERROR(node.RequireObject());
  WINNOW_ASSIGN_OR_RETURN(const std::string type, node.StringOr("type", GuessType(node)));
  if (type == "BPE") return BpeModel::Parse(node);
  if (type == "Unigram") return UnigramModel::Parse(node);
  if (type == "WordPiece") return WordPieceModel::Parse(node);
  return absl::UnimplementedError(
      absl::StrCat(node.path(), ".type: unsupported model \"", type, "\", only BPE, Unigram and WordPiece are"));
}

}  // namespace winnow
