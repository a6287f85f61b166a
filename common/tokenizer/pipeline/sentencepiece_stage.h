#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "common/tokenizer/pipeline/decode_stages.h"

namespace winnow {

// How SentencePiece turns pieces into text.
struct SentencePieceDecoding {
  bool byte_fallback = false;
  // Of the text's first piece: the mark that was put there vanishes; with `drop_all_leading`, of all pieces up to the
  // first that shows anything.
  bool drop_leading = false;
  bool drop_all_leading = false;
  std::string unk_piece;    // empty: none is replaced
  std::string unk_surface;  // what is shown for it
};

// `decoding` must outlive the stage. A run of byte pieces is read character by character; bytes that are none become
// U+FFFD each.
std::unique_ptr<DecodeStage> NewSentencePieceStage(const SentencePieceDecoding& decoding, DecodeStage* next);

// The bytes that a piece adds inside a text.
std::string SentencePieceBytes(const SentencePieceDecoding& decoding, std::string_view piece);

}  // namespace winnow
