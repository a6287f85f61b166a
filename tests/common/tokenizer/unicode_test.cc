#include "common/tokenizer/unicode.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/tokenizer/regex.h"
#include "common/tokenizer/utf8.h"

namespace winnow {
namespace {

std::string Lossy(const std::vector<std::string>& parts) {
  LossyUtf8Stream stream;
  std::string text;
  for (const auto& part : parts) stream.Push(part, &text);
  stream.Finish(&text);
  return text;
}

// Unicode 15, table 3-8 and its neighbours: one U+FFFD for each maximal subpart.
TEST(Utf8Test, LossyReplacesMaximalSubparts) {
  EXPECT_EQ(Lossy({"a\xF1\x80\x80\xE1\x80\xC2"
                   "b\x80"
                   "c\x80\xBF"
                   "d"}),
            "a\uFFFD\uFFFD\uFFFDb\uFFFDc\uFFFD\uFFFDd");
  EXPECT_EQ(Lossy({"\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"}), "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA");
  EXPECT_EQ(Lossy({"\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"}), "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA");
  EXPECT_EQ(Lossy({"\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"}), "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA\uFFFD\uFFFDB");
  EXPECT_EQ(Lossy({"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"}), "\uFFFD\uFFFD\uFFFD\uFFFDA");
  EXPECT_EQ(Lossy({"\xF0\x9F", "\x98", "\x80"}), "\U0001F600");
}

TEST(Utf8Test, FindsTheFirstInvalidByte) {
  EXPECT_EQ(FindInvalidUtf8("aé日\U0001F600"), std::string_view::npos);
  EXPECT_EQ(FindInvalidUtf8("ab\x80"), 2u);
  EXPECT_EQ(FindInvalidUtf8("a\xED\xA0\x80"), 1u);  // a surrogate
  EXPECT_EQ(FindInvalidUtf8("\xC1\x81"), 0u);       // overlong
  EXPECT_EQ(FindInvalidUtf8("é\xE6\x97"), 2u);      // cut off
  EXPECT_EQ(FindInvalidUtf8("\xF4\x90\x80\x80"), 0u);
}

TEST(UnicodeTest, NormalizationForms) {
  // U+1E9B (long s with dot above) and U+0323 (dot below): the example of Unicode Standard Annex 15.
  const std::string text = "\u1E9B\u0323";
  EXPECT_EQ(NormalizeUnicode(text, NormalizationForm::kNfc), "\u1E9B\u0323");
  EXPECT_EQ(NormalizeUnicode(text, NormalizationForm::kNfd), "\u017F\u0323\u0307");
  EXPECT_EQ(NormalizeUnicode(text, NormalizationForm::kNfkc), "\u1E69");
  EXPECT_EQ(NormalizeUnicode(text, NormalizationForm::kNfkd), "s\u0323\u0307");
  EXPECT_EQ(NormalizeUnicode("\u1112\u1161\u11AB", NormalizationForm::kNfc), "\uD55C");
}

// Quadratic sorting of these would take minutes.
TEST(UnicodeTest, LongRunsOfMarksAreOrdered) {
  std::string mixed = "x", above, below;
  for (int i = 0; i < 200'000; ++i) {
    mixed += "\u0307\u0323";
    above += "\u0307";
    below += "\u0323";
  }
  EXPECT_EQ(NormalizeUnicode(mixed, NormalizationForm::kNfd), "x" + below + above);
}

TEST(RegexTest, TranslatesOnigurumaSyntax) {
  EXPECT_EQ(TranslateOnigurumaPattern(R"(\p{N}{1,3}+)").value(), R"((?:\p{N}{1,3})+)");
  EXPECT_EQ(TranslateOnigurumaPattern(R"(x(?:a|[b(]){2}+y)").value(), R"(x(?:(?:a|[b(]){2})+y)");
  EXPECT_EQ(TranslateOnigurumaPattern(R"(a{,2}\h[\h\]x])").value(), R"(a{0,2}[0-9a-fA-F][0-9a-fA-F\]x])");
  EXPECT_EQ(TranslateOnigurumaPattern(R"(\p{L}+a{b\\s[[:alpha:]])").value(), R"(\p{L}+a{b\\s[[:alpha:]])");
  EXPECT_EQ(TranslateOnigurumaPattern("[a[bc]]+").value(), "(?:(?:[a]|[bc]))+");
  EXPECT_EQ(TranslateOnigurumaPattern(R"([\p{L}\p{M}&&[^\p{Han}]]*)").value(),
            R"((?:(?=[\p{L}\p{M}])(?:[^\p{Han}]))*)");
  EXPECT_EQ(TranslateOnigurumaPattern("[^a&&b]").value(), "(?:(?!(?=[a])[b])(?s:.))");
  EXPECT_FALSE(TranslateOnigurumaPattern("[a&&]").ok());
  EXPECT_FALSE(TranslateOnigurumaPattern("[a[b]").ok());
  EXPECT_FALSE(TranslateOnigurumaPattern("[a").ok());
  EXPECT_FALSE(TranslateOnigurumaPattern("\\").ok());
}

std::vector<std::string> Matches(std::string_view pattern, std::string_view text) {
  std::vector<TextSpan> spans;
  const auto regex = Regex::Compile(pattern);
  EXPECT_TRUE(regex.ok()) << regex.status();
  EXPECT_TRUE(regex->FindAll(text, &spans).ok());
  std::vector<std::string> out;
  for (const TextSpan& span : spans) out.emplace_back(text.substr(span.begin, span.end - span.begin));
  return out;
}

TEST(RegexTest, MatchesUnicode) {
  using Strings = std::vector<std::string>;
  EXPECT_EQ(Matches(R"(\s+)", "a\u00A0\u3000b\u180Ec\u0085"), (Strings{"\u00A0\u3000", "\u0085"}));
  EXPECT_EQ(Matches(R"(\w+)", "né_1\u0301 日\u200D-"), (Strings{"né_1\u0301", "日"}));
  EXPECT_EQ(Matches(R"([^\s\w]+)", "a-! ?b"), (Strings{"-!", "?"}));
  EXPECT_EQ(Matches(R"(\d+)", "1٣x2"), (Strings{"1٣", "2"}));
  EXPECT_EQ(Matches(R"(\p{N}{1,3}+)", "12345x6"), (Strings{"12345", "6"}));  // a repeat, not a possessive interval
  EXPECT_EQ(Matches(R"(x*)", "axb"), (Strings{"", "x", ""}));                // no empty match right behind a match
  EXPECT_EQ(Matches(R"(^b)", "a\nb"), (Strings{"b"}));
}

}  // namespace
}  // namespace winnow
