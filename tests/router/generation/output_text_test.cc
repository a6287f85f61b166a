#include "router/generation/output_text.h"

#include <gtest/gtest.h>

namespace winnow {
namespace {

// The id is the letter.
class LetterDecoder : public TextDecoder {
 public:
  std::string Push(uint32_t id) override { return {static_cast<char>(id)}; }
  std::string Flush() override { return ""; }
};

std::vector<v1::Token> Tokens(std::string_view letters) {
  std::vector<v1::Token> tokens;
  for (const char c : letters) tokens.emplace_back().set_id(static_cast<unsigned char>(c));
  return tokens;
}

OutputText::Piece PushAll(TextStop stop, std::string_view letters) {
  OutputText text(std::make_unique<LetterDecoder>(), std::move(stop));
  OutputText::Piece piece = text.Push(Tokens(letters));
  if (!piece.stop_match) piece.text += text.Finish().text;
  return piece;
}

TEST(OutputTextTest, EndsBeforeAStopString) {
  const OutputText::Piece piece = PushAll({.strings = {"cd"}, .silent_ids = {}}, "abcdef");
  EXPECT_EQ(piece.text, "ab");
  EXPECT_EQ(piece.stop_match, "cd");
  EXPECT_EQ(piece.tokens, 4u);
}

TEST(OutputTextTest, EndsWithTheStopStringWhenAsked) {
  EXPECT_EQ(PushAll({.strings = {"cd"}, .silent_ids = {}, .include = true}, "abcdef").text, "abcd");
}

TEST(OutputTextTest, LeavesSilentTokensOut) {
  EXPECT_EQ(PushAll({.strings = {}, .silent_ids = {'c'}}, "abc").text, "ab");
}

}  // namespace
}  // namespace winnow
