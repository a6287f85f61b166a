#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/base/status.h"
#include "common/tokenizer/json_node.h"

namespace winnow {

// The tokens of a model and their ids. Const after it is made; it may be moved, and the views that it gives stay valid.
class Vocabulary {
 public:
  static constexpr uint32_t kNoId = UINT32_MAX;
  // Twenty times the largest public vocabularies; bounds the table by id.
  static constexpr uint32_t kMaxId = (1u << 22) - 1;

  struct Entry {
    std::string_view token;
    uint32_t id = 0;  // at most kMaxId
  };

  Vocabulary() = default;
  Vocabulary(Vocabulary&&) = default;
  Vocabulary& operator=(Vocabulary&&) = default;
  // Of entries with the same token, the last one's id is found. Of entries with the same id, the last one's token.
  explicit Vocabulary(const std::vector<Entry>& entries);
  // The `vocab` member of a model, an object of tokens and ids.
  static absl::StatusOr<Vocabulary> Parse(const JsonNode& model);

  std::optional<uint32_t> TokenId(std::string_view token) const;
  std::optional<std::string_view> Token(uint32_t id) const;
  uint32_t IdEnd() const { return static_cast<uint32_t>(tokens_.size()); }
  size_t LongestTokenCharacters() const { return longest_token_characters_; }
  size_t LongestTokenBytes() const { return longest_token_bytes_; }

  // Of the token <0xHH> that stands for a byte; kNoId when there is none.
  uint32_t ByteId(char byte) const { return byte_ids_[static_cast<uint8_t>(byte)]; }
  bool HasAllByteTokens() const;
  // Appends the ids of the bytes' tokens; nothing and false when one of them has none.
  bool AppendByteIds(std::string_view bytes, std::vector<uint32_t>* ids) const;

 private:
  std::vector<char> arena_;               // all tokens, one after another; a vector's buffer moves along with it
  std::vector<std::string_view> tokens_;  // by id, in arena_; data() null where no token has the id
  absl::flat_hash_map<absl::string_view, uint32_t> ids_;
  std::array<uint32_t, 256> byte_ids_{};
  size_t longest_token_characters_ = 1;
  size_t longest_token_bytes_ = 1;
};

}  // namespace winnow
