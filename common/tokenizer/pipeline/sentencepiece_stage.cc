#include "common/tokenizer/pipeline/sentencepiece_stage.h"

#include "common/tokenizer/utf8.h"

namespace winnow {
namespace {

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581

std::string WithSpaces(std::string_view piece) {
  std::string text;
  for (size_t pos = 0; pos < piece.size();) {
    if (piece.substr(pos).starts_with(kSpaceMark)) {
      text.push_back(' ');
      pos += kSpaceMark.size();
    } else {
      text.push_back(piece[pos++]);
    }
  }
  return text;
}

class SentencePieceStage final : public DecodeStage {
 public:
  SentencePieceStage(const SentencePieceDecoding& decoding, DecodeStage* next) : decoding_(decoding), next_(next) {}

  void Push(std::string_view piece) override {
    if (const auto byte = decoding_.byte_fallback ? ByteTokenValue(piece) : std::nullopt) {
      bytes_.push_back(*byte);
      ShowBytes(/*at_end=*/false);
      return;
    }
    ShowBytes(/*at_end=*/true);
    if (mark_dropped_ || shown_) at_start_ = false;
    mark_dropped_ = false;
    if (!decoding_.unk_piece.empty() && piece == decoding_.unk_piece) {
      Show(decoding_.unk_surface);
      return;
    }
    if (at_start_ && decoding_.drop_leading && piece.starts_with(kSpaceMark)) {
      piece.remove_prefix(kSpaceMark.size());
      mark_dropped_ = !decoding_.drop_all_leading;
    }
    Show(WithSpaces(piece));
  }

  void Finish() override {
    ShowBytes(/*at_end=*/true);
    next_->Finish();
  }

 private:
  void Show(std::string_view text) {
    if (text.empty()) return;
    shown_ = true;
    next_->Push(text);
  }

  // Shows the characters of bytes_ that later bytes cannot change; at the end of the run all.
  void ShowBytes(bool at_end) {
    std::string text;
    while (!bytes_.empty()) {
      const size_t needed = Utf8SequenceBytes(static_cast<unsigned char>(bytes_[0]));
      const std::string_view start = std::string_view(bytes_).substr(0, needed);
      if (start.size() == needed && FindInvalidUtf8(start) == start.npos) {
        text.append(start);
        bytes_.erase(0, needed);
      } else if (!at_end && CanBecomeCharacter(start)) {
        break;
      } else {
        text.append(kReplacementCharacter);
        bytes_.erase(0, 1);
      }
    }
    Show(text);
  }

  // Whether further bytes can make a character of these.
  static bool CanBecomeCharacter(std::string_view start) {
    LossyUtf8Stream stream;
    std::string replaced;
    stream.Push(start, &replaced);
    return replaced.empty();
  }

  const SentencePieceDecoding& decoding_;
  DecodeStage* const next_;
  std::string bytes_;          // at most three of a run of byte pieces
  bool at_start_ = true;       // marks at the start of pieces are still dropped
  bool mark_dropped_ = false;  // the last piece lost its mark
  bool shown_ = false;         // some text has been passed on
};

}  // namespace

std::unique_ptr<DecodeStage> NewSentencePieceStage(const SentencePieceDecoding& decoding, DecodeStage* next) {
  return std::make_unique<SentencePieceStage>(decoding, next);
}

std::string SentencePieceBytes(const SentencePieceDecoding& decoding, std::string_view piece) {
  if (const auto byte = decoding.byte_fallback ? ByteTokenValue(piece) : std::nullopt) return std::string(1, *byte);
  if (!decoding.unk_piece.empty() && piece == decoding.unk_piece) return decoding.unk_surface;
  return WithSpaces(piece);
}

}  // namespace winnow
