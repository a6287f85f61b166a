#include "common/tokenizer/tokenizer.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>

#include "common/base/check.h"
#include "common/tokenizer/checkpoint/read_file.h"
#include "common/tokenizer/json_node.h"
#include "common/tokenizer/utf8.h"

namespace winnow {
namespace {

constexpr size_t kMaxTextBytes = size_t{128} << 20;
constexpr int kMaxJsonDepth = 64;
constexpr size_t kMaxAddedTokens = 1 << 20;
constexpr size_t kMaxAddedTokenBytes = 1024;
constexpr uint32_t kMaxAddedId = (1u << 22) - 1;

absl::StatusOr<std::vector<AddedToken>> ParseAddedTokens(const JsonNode& list) {
  WINNOW_RETURN_IF_ERROR(list.RequireArray());
  const size_t count = list.value().size();
  if (count > kMaxAddedTokens) return list.Error(absl::StrCat(count, " tokens, the limit is ", kMaxAddedTokens));
  std::vector<AddedToken> tokens;
  tokens.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const JsonNode node = list.Element(i);
    AddedToken token;
    WINNOW_ASSIGN_OR_RETURN(token.content, node.String("content"));
    WINNOW_ASSIGN_OR_RETURN(token.id, node.Uint32("id"));
    WINNOW_ASSIGN_OR_RETURN(token.special, node.BoolOr("special", false));
    WINNOW_ASSIGN_OR_RETURN(token.normalized, node.BoolOr("normalized", !token.special));
    WINNOW_ASSIGN_OR_RETURN(token.lstrip, node.BoolOr("lstrip", false));
    WINNOW_ASSIGN_OR_RETURN(token.rstrip, node.BoolOr("rstrip", false));
    WINNOW_ASSIGN_OR_RETURN(token.single_word, node.BoolOr("single_word", false));
    tokens.push_back(std::move(token));
  }
  return tokens;
}

absl::StatusOr<TokenizerParts> ParseParts(const JsonNode& root) {
  TokenizerParts parts;
  WINNOW_ASSIGN_OR_RETURN(const JsonNode model, root.Member("model"));
  WINNOW_ASSIGN_OR_RETURN(parts.model, ParseTokenModel(model));
  if (root.Has("normalizer")) {
    WINNOW_ASSIGN_OR_RETURN(const JsonNode node, root.Member("normalizer"));
    WINNOW_ASSIGN_OR_RETURN(parts.normalizer, ParseNormalizer(node));
  }
  if (root.Has("pre_tokenizer")) {
    WINNOW_ASSIGN_OR_RETURN(const JsonNode node, root.Member("pre_tokenizer"));
    WINNOW_ASSIGN_OR_RETURN(parts.pre_tokenizer, ParsePreTokenizer(node));
  }
  if (root.Has("post_processor")) {
    WINNOW_ASSIGN_OR_RETURN(const JsonNode node, root.Member("post_processor"));
    WINNOW_ASSIGN_OR_RETURN(parts.post_processor, PostProcessor::Parse(node));
  }
  if (root.Has("decoder")) {
    WINNOW_ASSIGN_OR_RETURN(const JsonNode node, root.Member("decoder"));
    WINNOW_ASSIGN_OR_RETURN(parts.decoder, Decoder::Parse(node));
  }
  if (root.Has("added_tokens")) {
    WINNOW_ASSIGN_OR_RETURN(const JsonNode list, root.Member("added_tokens"));
    WINNOW_ASSIGN_OR_RETURN(parts.added_tokens, ParseAddedTokens(list));
  }
  return parts;
}

}  // namespace

std::string Sha256Hex(std::string_view bytes) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned int size = 0;
  WINNOW_CHECK(EVP_Digest(bytes.data(), bytes.size(), digest.data(), &size, EVP_sha256(), nullptr) == 1);
  constexpr char kHex[] = "0123456789abcdef";
  std::string hex;
  for (unsigned int i = 0; i < size; ++i) hex.append({kHex[digest[i] >> 4], kHex[digest[i] & 15]});
  return hex;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::string& path) {
  WINNOW_ASSIGN_OR_RETURN(const std::string bytes, ReadTokenizerFile(path));
  return Parse(bytes, path);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Parse(std::string_view json, std::string_view name) {
  const auto document = ParseBoundedJson(json, kMaxJsonDepth);
  if (!document.ok()) return Annotate(document.status(), name);
  absl::StatusOr<TokenizerParts> parts = ParseParts(JsonNode(&*document, ""));
  if (!parts.ok()) return Annotate(parts.status(), name);
  parts->digest = Sha256Hex(json);
  auto tokenizer = Assemble(*std::move(parts));
  if (!tokenizer.ok()) return Annotate(tokenizer.status(), name);
  return tokenizer;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Assemble(TokenizerParts parts) {
  std::unique_ptr<Tokenizer> tokenizer(new Tokenizer());
  WINNOW_RETURN_IF_ERROR(tokenizer->Build(std::move(parts)));
  return tokenizer;
}

absl::Status Tokenizer::Build(TokenizerParts parts) {
  digest_ = std::move(parts.digest);
  normalizer_ = std::move(parts.normalizer);
  pre_tokenizer_ = std::move(parts.pre_tokenizer);
  model_ = std::move(parts.model);
  post_processor_ = std::move(parts.post_processor);
  decoder_ = std::move(parts.decoder);
  const bool byte_level = pre_tokenizer_ != nullptr && pre_tokenizer_->IsByteLevel();
  keeps_text_ = (pre_tokenizer_ == nullptr || pre_tokenizer_->KeepsText()) &&
                (model_->KnowsEveryCharacter() || (byte_level && model_->KnowsByteLevelAlphabet()));
  id_end_ = model_->IdEnd();
  added_.reserve(parts.added_tokens.size());
  for (size_t i = 0; i < parts.added_tokens.size(); ++i) {
    const absl::Status status = AddToken(std::move(parts.added_tokens[i]));
    if (!status.ok()) return Annotate(status, absl::StrCat("added_tokens[", i, "]"));
  }
  return BuildMatchers();
}

absl::Status Tokenizer::AddToken(AddedToken token) {
  if (token.content.empty()) return absl::OkStatus();  // the library ignores these too
  if (token.content.size() > kMaxAddedTokenBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("content of ", token.content.size(), " bytes, the limit is ", kMaxAddedTokenBytes));
  }
  if (const auto id = model_->TokenId(token.content)) {
    token.id = *id;
  } else if (const auto other = model_->Token(token.id)) {
    return absl::InvalidArgumentError(absl::StrCat("id ", token.id, " of \"", token.content, "\" is the id of \"",
                                                   AbslSv(*other), "\" in the model's vocabulary"));
  }
  if (token.id > kMaxAddedId) {
    return absl::InvalidArgumentError(absl::StrCat("id ", token.id, " is above the limit ", kMaxAddedId));
  }
  if (added_ids_.contains(token.content)) return absl::OkStatus();
  if (const auto it = added_by_id_.find(token.id); it != added_by_id_.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("id ", token.id, " of \"", token.content, "\" is also the id of \"", it->second->content, "\""));
  }
  id_end_ = std::max(id_end_, token.id + 1);
  added_.push_back(std::move(token));
  added_by_id_.emplace(added_.back().id, &added_.back());
  added_ids_.emplace(added_.back().content, added_.back().id);
  return absl::OkStatus();
}

absl::Status Tokenizer::BuildMatchers() {
  std::vector<std::pair<std::string, const AddedToken*>> raw, normalized;
  for (const bool special : {true, false}) {
    for (const AddedToken& token : added_) {
      if (token.special != special) continue;
      if (!token.normalized) {
        raw.emplace_back(token.content, &token);
        continue;
      }
      std::string text = token.content;
      if (normalizer_ != nullptr) {
        if (const auto status = normalizer_->Normalize(&text); !status.ok()) {
          return Annotate(status, absl::StrCat("added token \"", token.content, "\""));
        }
        // Compared with the trie's size, not with one token: a normalizer may make each of many tokens long.
        if (text.size() > 64 * kMaxAddedTokenBytes) {
          return absl::InvalidArgumentError(
              absl::StrCat("added token \"", token.content, "\": normalized to ", text.size(), " bytes"));
        }
      }
      normalized.emplace_back(std::move(text), &token);
    }
  }
  raw_matcher_ = std::make_unique<AddedTokenMatcher>(raw);
  normalized_matcher_ = std::make_unique<AddedTokenMatcher>(normalized);
  return absl::OkStatus();
}

absl::Status Tokenizer::SplitAddedTokens(std::string_view text, PieceList* out) const {
  const auto append = [&](std::string_view piece, const AddedToken* token, bool at_input_start) {
    if (piece.empty()) return;
    const size_t begin = out->text.size();
    out->text.append(piece);
    out->pieces.push_back(
        {{begin, out->text.size()}, token == nullptr ? std::nullopt : std::optional(token->id), at_input_start});
  };
  out->text.reserve(text.size());
  for (const auto& raw : raw_matcher_->Split(text)) {
    const std::string_view raw_text = text.substr(raw.span.begin, raw.span.end - raw.span.begin);
    const bool at_start = raw.span.begin == 0;
    if (raw.token != nullptr) {
      append(raw_text, raw.token, at_start);
      continue;
    }
    std::string normalized(raw_text);
    if (normalizer_ != nullptr) WINNOW_RETURN_IF_ERROR(normalizer_->NormalizePart(&normalized, at_start));
    for (const auto& part : normalized_matcher_->Split(normalized)) {
      append(std::string_view(normalized).substr(part.span.begin, part.span.end - part.span.begin), part.token,
             at_start && part.span.begin == 0);
    }
  }
  return absl::OkStatus();
}

size_t Tokenizer::FewestTokens(const PieceList& list) const {
  if (!keeps_text_) return 0;
  size_t added_tokens = 0, characters = 0;
  for (const PieceList::Piece& piece : list.pieces) {
    if (piece.token_id.has_value()) {
      ++added_tokens;
    } else {
      characters += CountCodePoints(list.Text(piece));
    }
  }
  return added_tokens + characters / model_->LongestTokenCharacters();
}

absl::StatusOr<std::vector<uint32_t>> Tokenizer::Encode(std::string_view text, bool add_special_tokens,
                                                        size_t max_tokens) const {
  if (text.size() > kMaxTextBytes) {
    return absl::InvalidArgumentError(absl::StrCat("text of ", text.size(), " bytes, the limit is ", kMaxTextBytes));
  }
  if (const size_t at = FindInvalidUtf8(text); at != text.npos) {
    return absl::InvalidArgumentError(absl::StrCat("text is not UTF-8 at byte ", at));
  }
  PieceList list;
  WINNOW_RETURN_IF_ERROR(SplitAddedTokens(text, &list));
  const auto too_long = [&] { return absl::OutOfRangeError(absl::StrCat("more than ", max_tokens, " tokens")); };
  if (max_tokens != kAnyNumber && FewestTokens(list) > max_tokens) return too_long();
  if (pre_tokenizer_ != nullptr) WINNOW_RETURN_IF_ERROR(pre_tokenizer_->Apply(&list));
  std::vector<uint32_t> ids;
  ids.reserve(list.pieces.size() + 8);
  for (const PieceList::Piece& piece : list.pieces) {
    if (piece.token_id.has_value()) {
      ids.push_back(*piece.token_id);
    } else {
      WINNOW_RETURN_IF_ERROR(model_->EncodeWord(list.Text(piece), &ids));
    }
    if (ids.size() > max_tokens) return too_long();
  }
  return add_special_tokens ? post_processor_.Apply(std::move(ids)) : ids;
}

std::string Tokenizer::Decode(const std::vector<uint32_t>& ids, bool skip_special) const {
  DecodeStream stream = decoder_.NewStream();
  std::string text, part;
  for (const uint32_t id : ids) {
    const auto token = Token(id);
    if (!token.has_value() || (skip_special && IsSpecial(id))) continue;
    part.clear();
    stream.Push(*token, &part);
    text.append(part);
  }
  part.clear();
  stream.Finish(&part);
  text.append(part);
  return text;
}

std::string Tokenizer::TokenBytes(uint32_t id) const {
  const auto token = Token(id);
  return token.has_value() ? decoder_.TokenBytes(*token) : std::string();
}

std::optional<std::string_view> Tokenizer::Token(uint32_t id) const {
  if (const auto it = added_by_id_.find(id); it != added_by_id_.end()) return it->second->content;
  return model_->Token(id);
}

std::optional<uint32_t> Tokenizer::TokenId(std::string_view content) const {
  if (const auto it = added_ids_.find(AbslSv(content)); it != added_ids_.end()) return it->second;
  return model_->TokenId(content);
}

bool Tokenizer::IsSpecial(uint32_t id) const {
  const auto it = added_by_id_.find(id);
  return it != added_by_id_.end() && it->second->special;
}

}  // namespace winnow
