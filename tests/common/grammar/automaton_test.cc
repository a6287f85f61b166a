#include "common/grammar/automaton.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "common/grammar/grammar_text.h"
#include "common/grammar/utf8_ranges.h"
#include "common/tokenizer/utf8.h"

namespace winnow {
namespace {

using testing::HasSubstr;

std::string ErrorOf(std::string_view text) {
  const absl::StatusOr<Grammar> grammar = ParseGrammarText(text);
  const absl::Status status = grammar.ok() ? Automaton::Compile(*grammar).status() : grammar.status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  return std::string(status.message());
}

TEST(Automaton, RefusesRulesThatLeadToThemselvesBeforeAnyText) {
  EXPECT_THAT(ErrorOf(R"(root ::= root "a" | "b")"), HasSubstr("rule \"root\" is left-recursive"));
  EXPECT_THAT(ErrorOf("root ::= \"a\" list\nlist ::= blank list \"x\" | \"y\"\nblank ::= \" \"*"),
              HasSubstr("rule \"list\" is left-recursive"));
}

TEST(Automaton, TakesRulesThatLeadToThemselvesBehindSomeText) {
  for (const std::string_view text : {R"g(root ::= "(" root ")" | "")g", R"(root ::= "a" root?)",
                                      "root ::= (a)*\na ::= \"x\"?", R"(root ::= ("" | "a")*)"}) {
    EXPECT_TRUE(Automaton::Compile(*ParseGrammarText(text)).ok()) << text;
  }
}

TEST(Automaton, RefusesAGrammarWithoutTexts) {
  EXPECT_THAT(ErrorOf(R"(root ::= "a" root)"), HasSubstr("no text matches"));
  EXPECT_THAT(ErrorOf("root ::= []"), HasSubstr("no text matches"));
}

TEST(Automaton, RefusesWhatWouldBeTooLarge) {
  EXPECT_THAT(ErrorOf("root ::= ([a-z]{1000}){1000}"), HasSubstr("too large"));
  EXPECT_THAT(ErrorOf("root ::= ((([a-z]{1000}){1000}){1000}){1000}"), HasSubstr("too large"));
}

TEST(Utf8Ranges, AreTheTextsOfTheCharactersAndOfNoOthers) {
  for (const CodePointRange range :
       {CodePointRange{0, 0x10FFFF}, CodePointRange{0x7D, 0x903}, CodePointRange{0x5F, 0x61},
        CodePointRange{0x7FF, 0x800}, CodePointRange{0xFFF0, 0x10010}, CodePointRange{0x3A5B7, 0x7C3D2},
        CodePointRange{0xE9, 0xE9}}) {
    for (const CodePointRange& characters : NormalRanges({range}, /*negated=*/false)) {
      const std::vector<ByteRanges> all = Utf8Ranges(characters);
      for (char32_t c = 0; c <= 0x10FFFF; c += c < 0x11000 ? 1 : 17) {
        if (c >= 0xD800 && c <= 0xDFFF) continue;
        std::string text;
        AppendUtf8(c, &text);
        int found = 0;
        for (const ByteRanges& bytes : all) {
          bool fits = bytes.length == static_cast<int>(text.size());
          for (int i = 0; fits && i < bytes.length; ++i) {
            const auto byte = static_cast<uint8_t>(text[i]);
            fits = bytes.first[i] <= byte && byte <= bytes.last[i];
          }
          found += fits;
        }
        ASSERT_EQ(found, c >= characters.first && c <= characters.last) << static_cast<uint32_t>(c);
      }
    }
  }
}

}  // namespace
}  // namespace winnow
