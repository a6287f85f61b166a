#include "router/generation/output_text.h"

#include <utility>

namespace winnow {

OutputText::OutputText(std::unique_ptr<TextDecoder> decoder, std::vector<std::string> stops,
                       std::set<uint32_t> silent_ids)
    : decoder_(std::move(decoder)), stops_(std::move(stops)), silent_ids_(std::move(silent_ids)) {}

OutputText::Piece OutputText::Push(const std::vector<v1::Token>& tokens) {
  Piece piece;
  for (const v1::Token& token : tokens) {
    ++piece.tokens;
    if (silent_ids_.contains(token.id())) continue;
    StopStrings::Result result = stops_.Push(decoder_->Push(token.id()));
    piece.text += result.text;
    if (result.match) {
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
  return piece;
}

}  // namespace winnow
