#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/tokenizer/json_node.h"
#include "common/tokenizer/regex.h"

namespace winnow {

// A text cut into pieces: words still to be encoded, and added tokens that are final.
struct PieceList {
  struct Piece {
    TextSpan span;                     // in `text`; not empty
    std::optional<uint32_t> token_id;  // an added token: no later step looks at its text
    bool at_input_start = false;       // begins at the first byte of the input
  };

  std::string text;  // valid UTF-8, and so is every piece
  std::vector<Piece> pieces;

  std::string_view Text(const Piece& piece) const {
    return std::string_view(text).substr(piece.span.begin, piece.span.end - piece.span.begin);
  }
};

// Cuts pieces into words, and may rewrite them. Const and thread-safe.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual absl::Status Apply(PieceList* pieces) const = 0;
  // Whether the pieces have at least as many characters as before: none is dropped.
  virtual bool KeepsText() const { return true; }
  // Whether the pieces are of the byte-level alphabet afterwards.
  virtual bool IsByteLevel() const { return false; }
};

// The `pre_tokenizer` of tokenizer.json: ByteLevel, Split, Metaspace, Digits, Punctuation, Whitespace, WhitespaceSplit,
// CharDelimiterSplit, BertPreTokenizer, FixedLength and Sequence. Any other type is an Unimplemented error that names
// it.
absl::StatusOr<std::unique_ptr<PreTokenizer>> ParsePreTokenizer(const JsonNode& node);

}  // namespace winnow
