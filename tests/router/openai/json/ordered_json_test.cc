#include "router/openai/json/ordered_json.h"

#include <gtest/gtest.h>

namespace winnow {
namespace {

std::string Again(std::string_view text) {
  const auto document = ParseOrderedJson(text);
  return document.ok() ? document->dump() : std::string(document.status().message());
}

TEST(OrderedJson, KeepsTheOrderOfMembersAtEveryDepth) {
  const char text[] =
      R"({"z":1,"a":[{"y":null,"b":-2,"x":{}},[],"s",true],"m":{"k":1.5,"j":18446744073709551615,"i":"ä\n"}})";
  EXPECT_EQ(Again(text), text);
  EXPECT_EQ(Again("[]"), "[]");
  EXPECT_EQ(Again("3"), "3");
}

TEST(OrderedJson, TheLastOfEqualNamesCountsInThePlaceOfTheFirst) {
  EXPECT_EQ(Again(R"({"a":1,"b":2,"a":{"c":3,"c":4},"b":5})"), R"({"a":{"c":4},"b":5})");
}

TEST(OrderedJson, AMillionMembersAreNoProblem) {
  std::string text = "{";
  for (int i = 0; i < 1'000'000; ++i) text += (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":0";
  const auto document = ParseOrderedJson(text + "}");
  ASSERT_TRUE(document.ok());
  EXPECT_EQ(document->size(), 1'000'000u);
}

TEST(OrderedJson, AgreesWithTheLibrarysParserOnWhatIsJson) {
  for (const char* text : {"", "{", "}", "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "[1,]", "{\"a\":1}x", "NaN",
                           "{\"a\":1e999}", "\"\xff\"", "nul", "{\"a\":01}", "[[[1],2],{\"b\":{\"c\":[]}}]", "-0",
                           "1e3", "\"\\ud83d\\ude00\"", " { \"a\" : [ 1 , 2 ] } "}) {
    const auto document = ParseOrderedJson(text);
    const auto reference = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    EXPECT_EQ(document.ok(), !reference.is_discarded()) << text;
    if (document.ok()) {
      EXPECT_EQ(nlohmann::json::parse(document->dump()), reference) << text;
    } else {
      EXPECT_FALSE(document.status().message().empty()) << text;
    }
  }
}

}  // namespace
}  // namespace winnow
