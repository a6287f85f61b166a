#include "router/openai/tokenize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "router/openai/json/api_error.h"
#include "tests/router/openai/request/parsed_request.h"

namespace winnow {
namespace {

using ::testing::HasSubstr;

TEST(Tokenize, GoesBothWays) {
  const auto tokenize = [](const char* body) {
    return TokenizeJson(*ParseJsonObject(body), TestModel(), FakeTextCodec());
  };
  EXPECT_EQ(*tokenize(R"({"prompt": "hi"})"), R"({"count":3,"max_model_len":100,"tokens":[256,104,105]})");
  EXPECT_EQ(*tokenize(R"({"prompt": "hi", "add_special_tokens": false})"),
            R"({"count":2,"max_model_len":100,"tokens":[104,105]})");
  EXPECT_THAT(*tokenize(R"({"messages": [{"role": "user", "content": "a"}]})"), HasSubstr(R"("count":17)"));
  EXPECT_EQ(*tokenize(R"({"prompt": "hi", "truncate_prompt_tokens": 1})"),
            R"({"count":1,"max_model_len":100,"tokens":[105]})");
  EXPECT_THAT(*tokenize(R"({"messages": [{"role": "user", "content": "a"}], "tools": [{"type": "function",
                          "function": {"name": "f"}}], "continue_final_message": true})"),
              HasSubstr(R"("count":62)"))
      << "as the chat's prompt would be";
  EXPECT_EQ(ToApiError(tokenize(R"({"prompt": "a", "temperature": 1})").status()).param, "temperature");
  EXPECT_FALSE(tokenize("{}").ok());
  EXPECT_FALSE(tokenize(R"({"prompt": ["a"]})").ok());
  EXPECT_FALSE(tokenize(R"({"prompt": "a", "messages": []})").ok());
  EXPECT_EQ(tokenize(R"({"prompt": "a", "model": "x"})").status().code(), absl::StatusCode::kNotFound);

  const auto detokenize = [](const char* body) {
    return DetokenizeJson(*ParseJsonObject(body), TestModel(), FakeTextCodec());
  };
  EXPECT_EQ(*detokenize(R"({"tokens": [256, 104, 105]})"), R"({"prompt":"<s>hi"})");
  EXPECT_FALSE(detokenize(R"({"tokens": [300]})").ok());
  EXPECT_FALSE(detokenize(R"({"tokens": "a"})").ok());
  EXPECT_FALSE(detokenize("{}").ok());
}

}  // namespace
}  // namespace winnow
