#include "common/tokenizer/checkpoint/tiktoken_file.h"

#include <algorithm>
#include <charconv>
#include <memory>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "common/base/json.h"
#include "common/tokenizer/byte_level.h"
#include "common/tokenizer/json_node.h"
#include "common/tokenizer/model/rank_bpe_model.h"

namespace winnow {
namespace {

// The patterns of public families.
constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwenPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kKimiPattern =
    R"([\p{Han}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr uint32_t kLlama3Specials = 256;
constexpr uint32_t kQwenExtras = 205;
constexpr uint32_t kKimiSpecials = 258;

enum class Family { kLlama3, kQwen, kKimi, kOther };

Family FamilyOf(const TokenizerConfig& config) {
  if (config.ClassContains("QWen")) return Family::kQwen;
  if (config.ClassContains("TikToken")) return Family::kKimi;
  if (!config.exists || config.ClassContains("Llama") || config.ClassContains("PreTrainedTokenizerFast")) {
    return Family::kLlama3;
  }
  return Family::kOther;
}

absl::StatusOr<std::string> PatternOf(const TokenizerConfig& config) {
  if (config.pattern) return *config.pattern;
  switch (FamilyOf(config)) {
    case Family::kLlama3:
      return std::string(kLlama3Pattern);
    case Family::kQwen:
      return std::string(kQwenPattern);
    case Family::kKimi:
      return std::string(kKimiPattern);
    case Family::kOther:
      if (config.ClassContains("ChatGLM")) return std::string(kLlama3Pattern);
  }
  return absl::UnimplementedError(
      absl::StrCat("tokenizer_config.json has no pat_str, and the pattern of tokenizer_class \"",
                   config.tokenizer_class, "\" is not known"));
}

// Appends the special tokens that the family has behind its `num_base` tokens beside those of tokenizer_config.json.
void AddFamilyTokens(Family family, uint32_t num_base, std::vector<AddedToken>* tokens) {
  std::vector<std::string> names;
  if (family == Family::kQwen) {
    names = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    for (uint32_t i = 0; i < kQwenExtras; ++i) names.push_back(absl::StrCat("<|extra_", i, "|>"));
  } else if (family == Family::kKimi) {
    for (uint32_t i = 0; i < kKimiSpecials; ++i) names.push_back(absl::StrCat("<|reserved_token_", num_base + i, "|>"));
  } else if (family == Family::kLlama3) {
    names = {"<|begin_of_text|>",
             "<|end_of_text|>",
             "<|reserved_special_token_0|>",
             "<|reserved_special_token_1|>",
             "<|reserved_special_token_2|>",
             "<|reserved_special_token_3|>",
             "<|start_header_id|>",
             "<|end_header_id|>",
             "<|reserved_special_token_4|>",
             "<|eot_id|>"};
    for (uint32_t i = 5; names.size() < kLlama3Specials; ++i) {
      names.push_back(absl::StrCat("<|reserved_special_token_", i, "|>"));
    }
  }
  absl::flat_hash_set<uint32_t> ids;
  absl::flat_hash_set<std::string> contents;
  for (const AddedToken& token : *tokens) {
    ids.insert(token.id);
    contents.insert(token.content);
  }
  for (uint32_t i = 0; i < names.size(); ++i) {
    if (ids.contains(num_base + i) || contents.contains(names[i])) continue;
    tokens->push_back({.id = num_base + i, .content = names[i], .special = true});
  }
}

struct Line {
  std::string token;  // bytes
  uint32_t rank = 0;
};

std::optional<Line> ParseLine(std::string_view line) {
  const size_t space = line.find(' ');
  if (space == 0 || space == line.npos) return std::nullopt;
  Line parsed;
  const std::string_view rank = line.substr(space + 1);
  const auto end = std::from_chars(rank.data(), rank.data() + rank.size(), parsed.rank);
  if (end.ec != std::errc() || end.ptr != rank.data() + rank.size()) return std::nullopt;
  if (!absl::Base64Unescape(AbslSv(line.substr(0, space)), &parsed.token) || parsed.token.empty()) return std::nullopt;
  return parsed;
}

// Takes the next line, without its end, off the front of `rest`.
std::string_view TakeLine(std::string_view* rest) {
  const size_t end = std::min(rest->find('\n'), rest->size());
  std::string_view line = rest->substr(0, end);
  rest->remove_prefix(std::min(end + 1, rest->size()));
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

absl::StatusOr<std::unique_ptr<TokenModel>> ParseRanks(std::string_view bytes) {
  struct Token {
    std::string text;  // in the byte-level alphabet, so that every token is a text
    uint32_t rank;
  };
  std::vector<Token> tokens;
  absl::flat_hash_set<uint32_t> ranks;
  absl::flat_hash_set<std::string> texts;
  size_t number = 0;
  for (std::string_view rest = bytes; !rest.empty();) {
    const size_t at = bytes.size() - rest.size();
    const std::string_view line = TakeLine(&rest);
    ++number;
    if (line.empty()) continue;
    const auto error = [&](std::string_view what) {
      return absl::InvalidArgumentError(absl::StrCat("line ", number, " at byte ", at, ": ", AbslSv(what)));
    };
    const std::optional<Line> parsed = ParseLine(line);
    if (!parsed) return error("expected a token in base64, a space and its rank");
    if (parsed->rank > Vocabulary::kMaxId) {
      return error(absl::StrCat("rank ", parsed->rank, " is above the limit ", Vocabulary::kMaxId));
    }
    if (!ranks.insert(parsed->rank).second) return error(absl::StrCat("rank ", parsed->rank, " is there twice"));
    Token token{.text = {}, .rank = parsed->rank};
    AppendByteLevel(parsed->token, &token.text);
    if (!texts.insert(token.text).second) return error("the token is there twice");
    tokens.push_back(std::move(token));
  }
  std::vector<RankBpeModel::Piece> pieces;
  for (const Token& token : tokens) pieces.push_back({.text = token.text, .id = token.rank, .rank = token.rank});
  auto model = std::make_unique<RankBpeModel>(pieces, RankBpeModel::Options{.unk_id = {}, .whole_words_first = true});
  if (!model->KnowsByteLevelAlphabet()) return absl::InvalidArgumentError("not all 256 bytes are tokens");
  return model;
}

}  // namespace

bool LooksLikeTiktoken(std::string_view bytes) {
  return ParseLine(TakeLine(&bytes)).has_value();
}

absl::StatusOr<TokenizerParts> ParseTiktoken(std::string_view bytes, const TokenizerConfig& config) {
  TokenizerParts parts;
  WINNOW_ASSIGN_OR_RETURN(const std::string pattern, PatternOf(config));
  WINNOW_ASSIGN_OR_RETURN(parts.model, ParseRanks(bytes));
  const Family family = FamilyOf(config);
  // Those with ids first: the family's fill what they leave free, and what is named without an id may be among those.
  TokenizerConfig with_family = config;
  AddFamilyTokens(family, parts.model->IdEnd(), &with_family.added_tokens);
  parts.added_tokens = with_family.AllAddedTokens(*parts.model);

  const nlohmann::json pre_tokenizer = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  const nlohmann::json decoder = {{"type", "ByteLevel"}};
  auto parsed = ParsePreTokenizer(JsonNode(&pre_tokenizer, "pattern"));
  if (!parsed.ok()) return parsed.status();
  parts.pre_tokenizer = *std::move(parsed);
  WINNOW_ASSIGN_OR_RETURN(parts.decoder, Decoder::Parse(JsonNode(&decoder, "decoder")));
  if (family == Family::kQwen) {
    const nlohmann::json normalizer = {{"type", "NFC"}};
    WINNOW_ASSIGN_OR_RETURN(parts.normalizer, ParseNormalizer(JsonNode(&normalizer, "normalizer")));
  }
  const std::string bos = config.bos_token.value_or("<|begin_of_text|>");
  std::optional<std::string> before, after;
  if (config.add_bos_token.value_or(family == Family::kLlama3)) before = bos;
  if (config.add_eos_token.value_or(false)) after = config.eos_token.value_or("<|end_of_text|>");
  WINNOW_ASSIGN_OR_RETURN(parts.post_processor,
                          TokenizerConfig::Surround(before, after, *parts.model, parts.added_tokens));
  return parts;
}

}  // namespace winnow
