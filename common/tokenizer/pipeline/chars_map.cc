#include "common/tokenizer/pipeline/chars_map.h"

#include "common/tokenizer/utf8.h"

namespace winnow {
namespace {

constexpr size_t kSizeBytes = 4;

uint32_t LittleEndian32(std::string_view bytes) {
  uint32_t value = 0;
  for (int i = 3; i >= 0; --i) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

// The fields of a unit of the double array: its label with the leaf bit, the distance to its children, whether the key
// up to it has a value, and, of a leaf, the value.
uint32_t Label(uint32_t unit) {
  return unit & (uint32_t{1} << 31 | 0xFF);
}
uint32_t Offset(uint32_t unit) {
  return unit >> 10 << ((unit & (uint32_t{1} << 9)) >> 6);
}
bool HasLeaf(uint32_t unit) {
  return (unit >> 8 & 1) != 0;
}
bool IsLeaf(uint32_t unit) {
  return unit >> 31 != 0;
}
uint32_t Value(uint32_t unit) {
  return unit & ((uint32_t{1} << 31) - 1);
}

}  // namespace

absl::StatusOr<CharsMap> CharsMap::Parse(std::string_view blob) {
  if (blob.size() < kSizeBytes) {
    return absl::InvalidArgumentError(absl::StrCat("normalization rules of ", blob.size(), " bytes have no size"));
  }
  const size_t trie_bytes = LittleEndian32(blob);
  if (trie_bytes == 0 || trie_bytes % 4 != 0 || trie_bytes >= blob.size() - kSizeBytes) {
    return absl::InvalidArgumentError(absl::StrCat("normalization rules at byte 0: a trie of ", trie_bytes,
                                                   " bytes does not fit into ", blob.size(), " bytes"));
  }
  CharsMap map;
  map.units_.reserve(trie_bytes / 4);
  map.replacements_ = blob.substr(kSizeBytes + trie_bytes);
  if (map.replacements_.back() != '\0') {
    return absl::InvalidArgumentError(
        absl::StrCat("normalization rules at byte ", blob.size() - 1, ": the last replacement does not end"));
  }
  if (const size_t at = FindInvalidUtf8(map.replacements_); at != std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("normalization rules at byte ", kSizeBytes + trie_bytes + at, ": not UTF-8"));
  }
  for (size_t at = kSizeBytes; at < kSizeBytes + trie_bytes; at += 4) {
    const uint32_t unit = LittleEndian32(blob.substr(at));
    if (IsLeaf(unit) && (Value(unit) >= map.replacements_.size() ||
                         (static_cast<unsigned char>(map.replacements_[Value(unit)]) & 0xC0) == 0x80)) {
      return absl::InvalidArgumentError(
          absl::StrCat("normalization rules at byte ", at, ": no replacement begins at ", Value(unit)));
    }
    map.units_.push_back(unit);
  }
  return map;
}

std::optional<CharsMap::Match> CharsMap::Find(std::string_view text, bool longest) const {
  std::optional<Match> found;
  if (units_.empty()) return found;
  uint32_t node = Offset(units_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    // A zero byte is where values hang, not a label.
    node ^= byte;
    if (byte == 0 || node >= units_.size() || Label(units_[node]) != byte) break;
    const uint32_t unit = units_[node];
    node ^= Offset(unit);
    // Keys are whole characters in files that SentencePiece writes; a match must not end inside a character of text.
    const bool at_boundary = i + 1 == text.size() || (static_cast<unsigned char>(text[i + 1]) & 0xC0) != 0x80;
    if (!HasLeaf(unit) || node >= units_.size() || !IsLeaf(units_[node]) || !at_boundary) continue;
    found = Match{i + 1, std::string_view(replacements_.data() + Value(units_[node]))};
    if (!longest) break;
  }
  return found;
}

}  // namespace winnow
