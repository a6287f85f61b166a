#include "router/generation/output_text.h"

#include <utility>

namespace winnow {

OutputText::OutputText(std::unique_ptr<TextDecoder> decoder, TextStop stop)
    : decoder_(std::move(decoder)),
      stops_(std::move(stop.strings)),
      silent_ids_(std::move(stop.silent_ids)),
      include_stop_(stop.include) {}

OutputText::Piece OutputText::Push(const std::vector<v1::Token>& tokens) {
  Piece piece;
  for (const v1::Token& token : tokens) {
    ++piece.tokens;
    if (silent_ids_.contains(token.id())) continue;
    StopStrings::Result result = stops_.Push(decoder_->Push(token.id()));
    piece.text += result.text;
    if (result.match) {
      if (include_stop_) piece.text += *result.match;
      piece.stop_match = std::move(result.match);
      break;
    }
  }
  return piece;
}

OutputText::Piece OutputText::Finish() {
  StopStrings::Result result = stops_.Push(decoder_->Flush());
  Piece piece{.text = std::move(result.text), .stop_match = std::move(result.match)};
  if (!piece.stop_match) piece.text += stops_.Flush();
  if (piece.stop_match && include_stop_) piece.text += *piece.stop_match;
  return piece;
}

}  // namespace winnow
