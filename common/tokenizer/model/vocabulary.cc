#include "common/tokenizer/model/vocabulary.h"

#include <algorithm>
#include <cstdio>

#include "common/tokenizer/utf8.h"

namespace winnow {

Vocabulary::Vocabulary(const std::vector<Entry>& entries) {
  size_t arena_bytes = 0;
  uint32_t id_end = 0;
  for (const Entry& entry : entries) {
    arena_bytes += entry.token.size();
    id_end = std::max(id_end, entry.id + 1);
  }
  arena_.reserve(arena_bytes + 1);  // its data is not null even when all tokens are empty
  tokens_.resize(id_end);
  ids_.reserve(entries.size());
  for (const Entry& entry : entries) {
    const char* begin = arena_.data() + arena_.size();
    arena_.insert(arena_.end(), entry.token.begin(), entry.token.end());
    tokens_[entry.id] = std::string_view(begin, entry.token.size());
    ids_.insert_or_assign(AbslSv(tokens_[entry.id]), entry.id);
    longest_token_characters_ = std::max(longest_token_characters_, CountCodePoints(entry.token));
    longest_token_bytes_ = std::max(longest_token_bytes_, entry.token.size());
  }
  for (int byte = 0; byte < 256; ++byte) {
    char code[8];
    std::snprintf(code, sizeof(code), "<0x%02X>", byte);
    byte_ids_[byte] = TokenId(code).value_or(kNoId);
  }
}

absl::StatusOr<Vocabulary> Vocabulary::Parse(const JsonNode& model) {
  WINNOW_ASSIGN_OR_RETURN(const JsonNode vocab, model.Member("vocab"));
  WINNOW_RETURN_IF_ERROR(vocab.RequireObject());
  std::vector<Entry> entries;
  entries.reserve(vocab.value().size());
  std::vector<std::string_view> by_id;
  for (const auto& [token, id_value] : vocab.value().items()) {
    if (!id_value.is_number_unsigned() || id_value.get<uint64_t>() > kMaxId) {
      return vocab.ErrorAt(token, absl::StrCat("expected an id from 0 to ", kMaxId));
    }
    const auto id = id_value.get<uint32_t>();
    if (id >= by_id.size()) by_id.resize(std::max<size_t>(id + 1, by_id.size() * 2));
    if (by_id[id].data() != nullptr) {
      return vocab.ErrorAt(token, absl::StrCat("id ", id, " is also the id of \"", AbslSv(by_id[id]), "\""));
    }
    by_id[id] = token;  // a key of the document
    entries.push_back({token, id});
  }
  return Vocabulary(entries);
}

std::optional<uint32_t> Vocabulary::TokenId(std::string_view token) const {
  const auto it = ids_.find(AbslSv(token));
  return it == ids_.end() ? std::nullopt : std::optional(it->second);
}

std::optional<std::string_view> Vocabulary::Token(uint32_t id) const {
  if (id >= tokens_.size() || tokens_[id].data() == nullptr) return std::nullopt;
  return tokens_[id];
}

bool Vocabulary::HasAllByteTokens() const {
  return std::find(byte_ids_.begin(), byte_ids_.end(), kNoId) == byte_ids_.end();
}

bool Vocabulary::AppendByteIds(std::string_view bytes, std::vector<uint32_t>* ids) const {
  if (std::any_of(bytes.begin(), bytes.end(), [this](char byte) { return ByteId(byte) == kNoId; })) return false;
  for (const char byte : bytes) ids->push_back(ByteId(byte));
  return true;
}

}  // namespace winnow
