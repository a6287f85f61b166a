#include "router/generation/stop_strings.h"

#include <gtest/gtest.h>

#include <random>

namespace winnow {
namespace {

struct Outcome {
  std::string text;
  std::optional<std::string> match;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

// The definition: the stop string that ends first, of these the longest; the text before it.
Outcome BruteForce(const std::string& text, const std::vector<std::string>& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    const std::string* best = nullptr;
    for (const std::string& stop : stops) {
      if (stop.size() > end || text.compare(end - stop.size(), stop.size(), stop) != 0) continue;
      if (!best || stop.size() > best->size()) best = &stop;
    }
    if (best) return {text.substr(0, end - best->size()), *best};
  }
  return {text, std::nullopt};
}

TEST(StopStringsTest, AgreesWithTheDefinitionHoweverTheTextIsCut) {
  std::mt19937 random(3);
  int matches = 0;
  for (int round = 0; round < 20000; ++round) {
    auto draw_text = [&](size_t length) {
      std::string text;
      for (size_t i = 0; i < length; ++i) text += static_cast<char>('a' + random() % 2);
      return text;
    };
    std::vector<std::string> stops;
    for (size_t i = random() % 4; i > 0; --i) stops.push_back(draw_text(1 + random() % 6));
    const std::string text = draw_text(random() % 30);

    StopStrings matcher(stops);
    Outcome outcome;
    size_t at = 0;
    while (at < text.size() && !outcome.match) {
      const size_t length = std::min<size_t>(random() % 5, text.size() - at);
      StopStrings::Result result = matcher.Push(text.substr(at, length));
      at += length;
      outcome.text += result.text;
      outcome.match = result.match;
      // Nothing is held back but what may be the beginning of a stop string.
      if (!outcome.match) {
        const std::string held = text.substr(outcome.text.size(), at - outcome.text.size());
        bool may_begin = held.empty();
        for (const std::string& stop : stops) may_begin = may_begin || stop.compare(0, held.size(), held) == 0;
        ASSERT_TRUE(may_begin) << held;
      }
    }
    if (!outcome.match) outcome.text += matcher.Flush();
    const Outcome expected = BruteForce(text, stops);
    ASSERT_EQ(outcome, expected) << text;
    matches += expected.match.has_value();
  }
  EXPECT_GT(matches, 5000);
}

TEST(StopStringsTest, TextWithoutStopStringsGoesStraightThrough) {
  StopStrings none({});
  EXPECT_EQ(none.Push("abc").text, "abc");
  EXPECT_EQ(none.Flush(), "");
  StopStrings empty({""});
  EXPECT_EQ(empty.Push("abc").text, "abc");
}

TEST(StopStringsTest, CutsValidUtf8AtCharacters) {
  StopStrings stops({"é!"});
  EXPECT_EQ(stops.Push("aè").text, "aè");  // shares the lead byte with the stop string
  EXPECT_EQ(stops.Push("é").text, "");
  EXPECT_EQ(stops.Push("?").text, "é?");
  const auto result = stops.Push("né!x");
  EXPECT_EQ(result.text, "n");
  EXPECT_EQ(result.match, "é!");
}

}  // namespace
}  // namespace winnow
