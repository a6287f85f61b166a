#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "router/openai/json/api_error.h"
#include "tests/router/openai/request/answer_grammar.h"
#include "tests/router/openai/request/parsed_request.h"

namespace winnow {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kTool[] = R"({"type":"function","function":{"name":"f","parameters":{"b":1,"a":2}}})";

TEST(ChatTools, AreShownToTheTemplateAsTheClientWroteThem) {
  const auto request = ParseToolChat(std::string(R"("tools": [)") + kTool + R"(], "parallel_tool_calls": false)");
  EXPECT_EQ(PromptOf(request), std::string(R"({"tools":[)") + kTool + "]};user:hi;assistant:");
  EXPECT_EQ(request->parsing.tools, ToolFormat::kHermes);
  EXPECT_FALSE(request->parsing.parallel_tool_calls);
  EXPECT_THAT(request->shown_special, ElementsAre(258u)) << "the marker that is a token";
}

TEST(ChatTools, AreNotShownAndNotLookedForWhenNoneMayBeCalled) {
  const auto request = ParseToolChat(std::string(R"("tool_choice": "none", "tools": [)") + kTool + "]");
  EXPECT_EQ(PromptOf(request), "user:hi;assistant:");
  EXPECT_EQ(request->parsing.tools, ToolFormat::kNone);
  EXPECT_EQ(ParseToolChat(R"("user": "u")")->parsing.tools, ToolFormat::kNone);
}

TEST(ChatTools, AreRefusedWhereTheyWouldHaveNoEffect) {
  const std::string tools = std::string(R"("tools": [)") + kTool + "]";
  EXPECT_THAT(ToApiError(ParseChat(ChatWith(tools)).status()).message, HasSubstr("--tool-format"))
      << "the format is not known";
  FakeTextCodec blind;
  blind.read_variables = {};
  EXPECT_THAT(ToApiError(ParseToolChat(tools, blind).status()).message, HasSubstr("template does not show them"));
  const ApiError forced = ToApiError(ParseToolChat(tools + R"(, "tool_choice": "required")").status());
  EXPECT_EQ(forced.param, "tool_choice");
  EXPECT_THAT(forced.message, HasSubstr("tools[0].function.parameters: keyword \"b\" is not supported"));
}

TEST(ChatTools, ThatMustBeCalledConstrainTheAnswer) {
  const std::string tools = R"("tools": [{"type": "function", "function": {"name": "f", "parameters":
      {"type": "object", "properties": {"a": {"type": "integer"}}}}}, {"type": "function", "function": {"name": "g"}}])";
  constexpr std::string_view kCallF = R"(<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>)";
  constexpr std::string_view kCallG = R"(<tool_call>{"name": "g", "arguments": {}}</tool_call>)";
  EXPECT_EQ(GrammarOf(ParseToolChat(tools)), "");
  const auto any = ParseToolChat(tools + R"(, "tool_choice": "required")");
  EXPECT_TRUE(Matches(GrammarOf(any), kCallF));
  EXPECT_TRUE(Matches(GrammarOf(any), std::string(kCallG) + std::string(kCallF)));
  EXPECT_FALSE(Matches(GrammarOf(any), "hi"));
  EXPECT_TRUE(Matches(GrammarOf(any), "<think>hm</think>" + std::string(kCallG)));
  EXPECT_THAT(any->fields.sampling.constraint().shown_special_token_ids(), ElementsAre(258u));
  const auto one = ParseToolChat(tools + R"(, "tool_choice": {"type": "function", "function": {"name": "g"}})");
  EXPECT_TRUE(Matches(GrammarOf(one), kCallG));
  EXPECT_FALSE(Matches(GrammarOf(one), kCallF));
  EXPECT_FALSE(Matches(GrammarOf(one), std::string(kCallG) + std::string(kCallG)));
  const auto unknown = ParseToolChat(tools + R"(, "tool_choice": {"type": "function", "function": {"name": "h"}})");
  EXPECT_EQ(ToApiError(unknown.status()).param, "tool_choice");
  const auto both = ParseToolChat(tools + R"(, "tool_choice": "required", "response_format": {"type": "json_object"})");
  EXPECT_EQ(ToApiError(both.status()).param, "response_format");
}

TEST(ChatTools, EarlierCallsReachTheTemplateWithArgumentsAsObjects) {
  ServedModel model = TestModel();
  model.max_context_tokens = 200;
  const Json body = *ParseJsonObject(
      R"({"add_generation_prompt": false, "messages": [
          {"role": "assistant", "content": null, "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"b\": 1, \"a\": 2}"}}]},
          {"role": "tool", "tool_call_id": "1", "content": "3"},
          {"role": "assistant", "content": "x", "tool_calls": []}]})");
  const auto request = ParseChatRequest(body, model, FakeTextCodec());
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(FakeTextCodec().Decode(request->prompts[0].token_ids, false),
            R"(assistant:[{"id":"1","type":"function","function":{"name":"f","arguments":{"b":1,"a":2}}}];tool:3;)"
            "assistant:x;");
}

}  // namespace
}  // namespace winnow
