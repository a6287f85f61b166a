#include "cmd/terminal/pasted_texts.h"

#include "gtest/gtest.h"

namespace winnow {
namespace {

TEST(PastedTexts, AShortLineIsShownAsItIs) {
  PastedTexts pastes;
  EXPECT_EQ(pastes.Add("a few words"), "a few words");
}

TEST(PastedTexts, DocumentsAreShownAsNotesAndSentWhole) {
  PastedTexts pastes;
  const std::string lines = "one\ntwo\n", longer(5000, 'x');
  const std::string first = pastes.Add(lines), second = pastes.Add(longer);
  EXPECT_EQ(first, "[pasted text 1, 8 bytes]");
  EXPECT_EQ(second, "[pasted text 2, 5000 bytes]");
  EXPECT_EQ(pastes.Expand("Compare " + second + " with " + first + "."), "Compare " + longer + " with " + lines + ".");
  EXPECT_EQ(pastes.Expand("nothing pasted"), "nothing pasted");
}

TEST(PastedTexts, TerminalsSendCarriageReturns) {
  EXPECT_EQ(WithLineFeeds("a\rb\r\nc\n"), "a\nb\nc\n");
}

}  // namespace
}  // namespace winnow
