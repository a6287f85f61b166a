#include "common/tokenizer/checkpoint/tokenizer_config.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "common/base/json.h"
#include "common/tokenizer/checkpoint/read_file.h"
#include "common/tokenizer/json_node.h"

namespace winnow {
namespace {

constexpr int kMaxJsonDepth = 64;
constexpr const char* kNamedTokens[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};

// A token is written as a string or as an object with its content.
absl::StatusOr<std::string> TokenText(const JsonNode& node) {
  return node.value().is_object() ? node.String("content") : node.AsString();
}

absl::Status ReadOptional(const JsonNode& root, const char* key, std::optional<bool>* value) {
  if (!root.Has(key)) return absl::OkStatus();
  WINNOW_ASSIGN_OR_RETURN(*value, root.BoolOr(key, false));
  return absl::OkStatus();
}

void AddOnce(const std::string& token, std::vector<std::string>* tokens) {
  if (std::find(tokens->begin(), tokens->end(), token) == tokens->end()) tokens->push_back(token);
}

// The named tokens; what an earlier file said stays.
absl::Status ReadSpecialTokens(const JsonNode& root, TokenizerConfig* config) {
  for (const char* key : kNamedTokens) {
    if (!root.Has(key) || root.value()[key].is_boolean()) continue;
    WINNOW_ASSIGN_OR_RETURN(const JsonNode node, root.Member(key));
    WINNOW_ASSIGN_OR_RETURN(const std::string token, TokenText(node));
    std::optional<std::string> ignored;
    const std::string_view name = key;
    auto& named = name == "bos_token"   ? config->bos_token
                  : name == "eos_token" ? config->eos_token
                  : name == "unk_token" ? config->unk_token
                                        : ignored;
    if (!named.has_value()) named = token;
    AddOnce(token, &config->special_tokens);
  }
  if (root.Has("additional_special_tokens")) {
    WINNOW_ASSIGN_OR_RETURN(const JsonNode list, root.Member("additional_special_tokens"));
    WINNOW_RETURN_IF_ERROR(list.RequireArray());
    for (size_t i = 0; i < list.value().size(); ++i) {
      WINNOW_ASSIGN_OR_RETURN(const std::string token, TokenText(list.Element(i)));
      AddOnce(token, &config->special_tokens);
    }
  }
  return absl::OkStatus();
}

absl::Status ReadAddedTokensDecoder(const JsonNode& root, TokenizerConfig* config) {
  if (!root.Has("added_tokens_decoder")) return absl::OkStatus();
  WINNOW_ASSIGN_OR_RETURN(const JsonNode table, root.Member("added_tokens_decoder"));
  WINNOW_RETURN_IF_ERROR(table.RequireObject());
  for (const auto& [key, value] : table.value().items()) {
    AddedToken token;
    const auto parsed = std::from_chars(key.data(), key.data() + key.size(), token.id);
    if (key.empty() || parsed.ec != std::errc() || parsed.ptr != key.data() + key.size()) {
      return table.ErrorAt(key, "expected an id");
    }
    WINNOW_ASSIGN_OR_RETURN(const JsonNode node, table.Member(key));
    WINNOW_ASSIGN_OR_RETURN(token.content, TokenText(node));
    if (value.is_object()) {
      WINNOW_ASSIGN_OR_RETURN(token.special, node.BoolOr("special", false));
      WINNOW_ASSIGN_OR_RETURN(token.lstrip, node.BoolOr("lstrip", false));
      WINNOW_ASSIGN_OR_RETURN(token.rstrip, node.BoolOr("rstrip", false));
      WINNOW_ASSIGN_OR_RETURN(token.single_word, node.BoolOr("single_word", false));
    }
    config->added_tokens.push_back(std::move(token));
  }
  std::sort(config->added_tokens.begin(), config->added_tokens.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  return absl::OkStatus();
}

absl::Status ReadConfig(const JsonNode& root, TokenizerConfig* config) {
  config->exists = true;
  WINNOW_ASSIGN_OR_RETURN(config->tokenizer_class, root.StringOr("tokenizer_class", ""));
  WINNOW_RETURN_IF_ERROR(ReadOptional(root, "add_bos_token", &config->add_bos_token));
  WINNOW_RETURN_IF_ERROR(ReadOptional(root, "add_eos_token", &config->add_eos_token));
  WINNOW_RETURN_IF_ERROR(ReadOptional(root, "add_prefix_space", &config->add_prefix_space));
  WINNOW_RETURN_IF_ERROR(ReadOptional(root, "legacy", &config->legacy));
  WINNOW_RETURN_IF_ERROR(ReadOptional(root, "do_lower_case", &config->do_lower_case));
  WINNOW_RETURN_IF_ERROR(ReadOptional(root, "strip_accents", &config->strip_accents));
  WINNOW_RETURN_IF_ERROR(ReadOptional(root, "tokenize_chinese_chars", &config->tokenize_chinese_chars));
  for (const char* key : {"pat_str", "pattern"}) {
    if (!root.Has(key)) continue;
    WINNOW_ASSIGN_OR_RETURN(config->pattern, root.String(key));
    break;
  }
  WINNOW_RETURN_IF_ERROR(ReadAddedTokensDecoder(root, config));
  return ReadSpecialTokens(root, config);
}

// added_tokens.json: texts and ids.
absl::Status ReadAddedTokens(const JsonNode& root, TokenizerConfig* config) {
  WINNOW_RETURN_IF_ERROR(root.RequireObject());
  for (const auto& [content, value] : root.value().items()) {
    WINNOW_ASSIGN_OR_RETURN(const uint32_t id, root.Uint32(content));
    const auto same = [&, &text = content](const AddedToken& token) { return token.content == text; };
    if (std::any_of(config->added_tokens.begin(), config->added_tokens.end(), same)) continue;
    config->added_tokens.push_back({.id = id, .content = content});
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TokenizerConfig> TokenizerConfig::Load(const std::string& model_dir) {
  TokenizerConfig config;
  using Reader = absl::Status (*)(const JsonNode&, TokenizerConfig*);
  for (const auto& [name, read] : {std::pair<const char*, Reader>{"tokenizer_config.json", &ReadConfig},
                                   {"special_tokens_map.json", &ReadSpecialTokens},
                                   {"added_tokens.json", &ReadAddedTokens}}) {
    const std::string path = absl::StrCat(model_dir, "/", name);
    if (!std::filesystem::exists(path)) continue;
    WINNOW_ASSIGN_OR_RETURN(const std::string bytes, ReadTokenizerFile(path));
    const auto document = ParseBoundedJson(bytes, kMaxJsonDepth);
    if (!document.ok()) return Annotate(document.status(), path);
    if (const auto status = read(JsonNode(&*document, ""), &config); !status.ok()) return Annotate(status, path);
    config.bytes.append(bytes);
  }
  return config;
}

std::vector<AddedToken> TokenizerConfig::AllAddedTokens(const TokenModel& model) const {
  std::vector<AddedToken> tokens = added_tokens;
  uint32_t next_id = model.IdEnd();
  for (const AddedToken& token : tokens) next_id = std::max(next_id, token.id + 1);
  for (const std::string& content : special_tokens) {
    const auto it = std::find_if(tokens.begin(), tokens.end(), [&](const auto& t) { return t.content == content; });
    if (it != tokens.end()) {
      it->special = true;
      continue;
    }
    const auto id = model.TokenId(content);
    tokens.push_back({.id = id ? *id : next_id++, .content = content, .special = true});
  }
  return tokens;
}

absl::StatusOr<PostProcessor> TokenizerConfig::Surround(const std::optional<std::string>& before,
                                                        const std::optional<std::string>& after,
                                                        const TokenModel& model, const std::vector<AddedToken>& added) {
  std::vector<uint32_t> ids[2];
  size_t side = 0;
  for (const auto* token : {&before, &after}) {
    std::vector<uint32_t>& out = ids[side++];
    if (!token->has_value()) continue;
    const auto it = std::find_if(added.begin(), added.end(), [&](const auto& t) { return t.content == **token; });
    const auto id = model.TokenId(**token);
    if (!id && it == added.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the token \"", **token, "\" that texts are to begin or end with is not in the vocabulary"));
    }
    out.push_back(id ? *id : it->id);
  }
  if (ids[0].empty() && ids[1].empty()) return PostProcessor();
  return PostProcessor::Around(std::move(ids[0]), std::move(ids[1]));
}

}  // namespace winnow
