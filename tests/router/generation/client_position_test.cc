#include "router/generation/client_position.h"

#include <gtest/gtest.h>

namespace winnow {
namespace {

TextDelta Delta(uint32_t first_index, size_t tokens, std::string text) {
  return {
      .output_index = 0, .first_index = first_index, .tokens = std::vector<v1::Token>(tokens), .text = std::move(text)};
}

TEST(ClientPosition, OfANewClientTakesNothingOut) {
  ClientPosition position;
  TextDelta delta = Delta(0, 2, "ab");
  EXPECT_TRUE(position.Trim(&delta));
  EXPECT_EQ(delta.tokens.size(), 2u);
  EXPECT_EQ(delta.text, "ab");
}

TEST(ClientPosition, TakesOutTokensThatAreKnownAndTheirText) {
  ClientPosition position(3);
  TextDelta known = Delta(0, 3, "abc");
  EXPECT_FALSE(position.Trim(&known));
  TextDelta next = Delta(3, 1, "d");
  EXPECT_TRUE(position.Trim(&next));
  EXPECT_EQ(next.text, "d");
}

// It had a delta of the rest of the text, but not the end that follows.
TEST(ClientPosition, TakesOutTextByItsBytesWhereTheClientCountsThem) {
  for (uint64_t bytes = 0; bytes <= 6; ++bytes) {
    ClientPosition position(3, bytes);
    std::string text;
    TextDelta known = Delta(0, 3, "abc"), rest = Delta(3, 0, "def");
    if (position.Trim(&known)) text += known.text;
    EXPECT_TRUE(known.tokens.empty());
    EXPECT_EQ(position.Trim(&rest), bytes < 6);
    EXPECT_EQ(text + rest.text, std::string("abcdef").substr(bytes));
  }
}

}  // namespace
}  // namespace winnow
