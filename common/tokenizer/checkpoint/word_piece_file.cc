#include "common/tokenizer/checkpoint/word_piece_file.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "common/base/json.h"
#include "common/tokenizer/json_node.h"
#include "common/tokenizer/model/word_piece_model.h"
#include "common/tokenizer/pipeline/bert_normalizer.h"
#include "common/tokenizer/unicode.h"
#include "common/tokenizer/utf8.h"

namespace winnow {
namespace {

std::string_view WithoutTrailingSpace(std::string_view line) {
  size_t end = 0;
  for (size_t pos = 0; pos < line.size();) {
    if (!IsUnicodeWhitespace(NextCodePoint(line, &pos))) end = pos;
  }
  return line.substr(0, end);
}

}  // namespace

absl::StatusOr<TokenizerParts> ParseWordPieceVocabulary(std::string_view bytes, const TokenizerConfig& config) {
  if (const size_t at = FindInvalidUtf8(bytes); at != bytes.npos) {
    return absl::InvalidArgumentError(absl::StrCat("not UTF-8 at byte ", at));
  }
  std::vector<Vocabulary::Entry> entries;
  for (std::string_view rest = bytes; !rest.empty();) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    if (entries.size() > Vocabulary::kMaxId) {
      return absl::InvalidArgumentError(absl::StrCat("more than ", Vocabulary::kMaxId, " lines"));
    }
    entries.push_back({WithoutTrailingSpace(rest.substr(0, end)), static_cast<uint32_t>(entries.size())});
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  TokenizerParts parts;
  WordPieceModel::Options options;
  options.unk_token = config.unk_token.value_or("[UNK]");
  parts.model = std::make_unique<WordPieceModel>(Vocabulary(entries), options);
  if (!parts.model->TokenId(options.unk_token)) {
    return absl::InvalidArgumentError(absl::StrCat("the unknown token \"", options.unk_token, "\" is not there"));
  }
  const bool lowercase = config.do_lower_case.value_or(true);
  parts.normalizer = NewBertNormalizer({.clean_text = true,
                                        .handle_chinese_chars = config.tokenize_chinese_chars.value_or(true),
                                        .strip_accents = config.strip_accents.value_or(lowercase),
                                        .lowercase = lowercase});
  const nlohmann::json pre_tokenizer = {{"type", "BertPreTokenizer"}};
  const nlohmann::json decoder = {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}};
  WINNOW_ASSIGN_OR_RETURN(parts.pre_tokenizer, ParsePreTokenizer(JsonNode(&pre_tokenizer, "pre_tokenizer")));
  WINNOW_ASSIGN_OR_RETURN(parts.decoder, Decoder::Parse(JsonNode(&decoder, "decoder")));

  TokenizerConfig with_defaults = config;
  for (const char* token : {"[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"}) {
    if (parts.model->TokenId(token)) with_defaults.special_tokens.emplace_back(token);
  }
  parts.added_tokens = with_defaults.AllAddedTokens(*parts.model);
  std::optional<std::string> before, after;
  if (parts.model->TokenId("[CLS]") && parts.model->TokenId("[SEP]")) {
    before = "[CLS]";
    after = "[SEP]";
  }
  WINNOW_ASSIGN_OR_RETURN(parts.post_processor,
                          TokenizerConfig::Surround(before, after, *parts.model, parts.added_tokens));
  return parts;
}

}  // namespace winnow
