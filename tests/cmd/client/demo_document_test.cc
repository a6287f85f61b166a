#include "cmd/client/demo_document.h"

#include <algorithm>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace winnow {
namespace {

size_t Count(const std::string& text, const std::string& piece) {
  size_t count = 0;
  for (size_t at = 0; (at = text.find(piece, at)) != std::string::npos; at += piece.size()) ++count;
  return count;
}

TEST(DemoDocument, TheAnswerIsALineOfTheTextAndAnswersTheQuestion) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const DemoDocument document = MakeDemoDocument(seed, 8000, 12);
    EXPECT_THAT(document.answer, testing::MatchesRegex("The code of [a-z]{6,7} is [0-9]{6}\\."));
    const std::string name = document.answer.substr(12, document.answer.find(" is ") - 12);
    EXPECT_EQ(document.question, "What is the code of " + name + "?");
    EXPECT_EQ(Count("\n" + document.text + "\n", "\n" + document.answer + "\n"), 1u);
    EXPECT_EQ(Count(document.text, "The code of " + name + " "), 1u);
    EXPECT_EQ(Count(document.text, "The code of "), 12u);
  }
}

TEST(DemoDocument, HasTheLengthThatWasAskedFor) {
  for (size_t length : {1000u, 8000u, 100000u}) {
    const size_t size = MakeDemoDocument(1, length, 4).text.size();
    EXPECT_LE(size, length);
    EXPECT_GT(size + 500, length);  // a paragraph of four sentences is shorter than 500
  }
}

TEST(DemoDocument, DependsOnTheSeedAlone) {
  EXPECT_EQ(MakeDemoDocument(3, 5000, 8).text, MakeDemoDocument(3, 5000, 8).text);
  EXPECT_NE(MakeDemoDocument(3, 5000, 8).text, MakeDemoDocument(4, 5000, 8).text);
}

}  // namespace
}  // namespace winnow
