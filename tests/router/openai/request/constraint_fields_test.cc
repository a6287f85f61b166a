#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/router/openai/request/answer_grammar.h"
#include "tests/router/openai/request/parsed_request.h"

namespace winnow {
namespace {

using ::testing::ElementsAre;

TEST(Constraints, AreReadInEveryFormThatClientsSend) {
  constexpr std::string_view kValid = R"({"a": 1})";
  constexpr std::string_view kMore = R"({"a": 1, "b": 2})";
  const std::string schema = R"({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})";
  const auto format = [&](const std::string& more) {
    return R"("response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": )" + schema + more +
           "}}";
  };
  for (const std::string& fields :
       {format(""), R"("guided_json": )" + schema, R"("structured_outputs": {"json": )" + schema + "}",
        R"("guided_json": )" + Json(schema).dump()}) {
    for (const auto& request : {ParseCompletion(With(fields)), ParseChat(ChatWith(fields))}) {
      EXPECT_TRUE(Matches(GrammarOf(request), kValid)) << fields;
      EXPECT_TRUE(Matches(GrammarOf(request), kMore)) << fields;
      EXPECT_FALSE(Matches(GrammarOf(request), "{}")) << fields;
    }
  }
  EXPECT_FALSE(Matches(GrammarOf(ParseChat(ChatWith(format(R"(, "strict": true)")))), kMore));
  EXPECT_EQ(GrammarOf(ParseChat(ChatWith(R"("response_format": {"type": "text"})"))), "");
  EXPECT_TRUE(Matches(GrammarOf(ParseChat(ChatWith(R"("response_format": {"type": "json_object"})"))), kMore));
  EXPECT_TRUE(Matches(GrammarOf(ParseCompletion(With(R"("guided_regex": "a+")"))), "aa"));
  EXPECT_TRUE(Matches(GrammarOf(ParseCompletion(With(R"("guided_choice": ["yes", "no"])"))), "no"));
  EXPECT_TRUE(Matches(GrammarOf(ParseCompletion(With(R"("guided_grammar": "root ::= [ab]")"))), "b"));
  const std::string compact = GrammarOf(
      ParseCompletion(With(R"("structured_outputs": {"json_object": true, "disable_any_whitespace": true})")));
  EXPECT_TRUE(Matches(compact, R"({"a":1})"));
  EXPECT_FALSE(Matches(compact, kValid));
}

TEST(Constraints, OnTokensAreRead) {
  const v1::SamplingParams sampling =
      ParseCompletion(With(R"("min_tokens": 3, "allowed_token_ids": [5, 6], "bad_words": ["ab"])"))->fields.sampling;
  EXPECT_EQ(sampling.min_tokens(), 3u);
  EXPECT_THAT(sampling.allowed_token_ids(), ElementsAre(5u, 6u));
  ASSERT_EQ(sampling.bad_words_size(), 2);
  EXPECT_THAT(sampling.bad_words(0).token_ids(), ElementsAre('a', 'b'));
  EXPECT_THAT(sampling.bad_words(1).token_ids(), ElementsAre(' ', 'a', 'b')) << "behind a space";
}

}  // namespace
}  // namespace winnow
