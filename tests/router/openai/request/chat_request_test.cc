#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "router/openai/json/api_error.h"
#include "tests/router/openai/request/parsed_request.h"

namespace winnow {
namespace {

using ::testing::HasSubstr;

TEST(ChatRequest, FillsTheContextUnlessLimited) {
  const GenerationRequest request = *ParseChat(R"({"messages": [{"role": "user", "content": "hi"}]})");
  const std::string text = "user:hi;assistant:";
  EXPECT_EQ(request.prompts[0].token_ids, std::vector<uint32_t>(text.begin(), text.end()))
      << "the template writes special tokens";
  EXPECT_EQ(request.prompts[0].max_tokens, 100 - text.size());
  EXPECT_EQ(ParseChat(ChatWith(R"("max_tokens": 5)"))->prompts[0].max_tokens, 5u);
  EXPECT_EQ(ParseChat(ChatWith(R"("max_tokens": 5, "max_completion_tokens": 6)"))->prompts[0].max_tokens, 6u);
}

TEST(ChatRequest, ReadsLogprobs) {
  EXPECT_EQ(ParseChat(ChatWith(R"("logprobs": false)"))->top_logprobs, std::nullopt);
  EXPECT_EQ(ParseChat(ChatWith(R"("logprobs": true)"))->top_logprobs, 0u);
  EXPECT_EQ(ParseChat(ChatWith(R"("logprobs": true, "top_logprobs": 20)"))->top_logprobs, 20u);
}

TEST(ChatRequest, TemplatesSeeObjectsInTheOrderOfTheClient) {
  const GenerationRequest request = *ParseChat(
      R"({"chat_template_kwargs": {"tools": {"type": "function", "name": "f", "arguments": {"b": 1, "a": 2}}},
          "messages": [{"role": "user", "content": "c"}], "add_generation_prompt": false})");
  EXPECT_EQ(FakeTextCodec().Decode(request.prompts[0].token_ids, false),
            R"({"tools":{"type":"function","name":"f","arguments":{"b":1,"a":2}}};user:c;)");
}

TEST(ChatRequest, JoinsTextParts) {
  const GenerationRequest request = *ParseChat(
      R"({"messages": [{"role": "system", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                       {"role": "assistant", "content": null}, {"role": "user", "content": "c"}], "add_generation_prompt": false})");
  EXPECT_EQ(FakeTextCodec().Decode(request.prompts[0].token_ids, false), "system:a\nb;assistant:;user:c;");
}

TEST(ChatRequest, RefusesAndNamesTheField) {
  const struct {
    std::string body;
    const char* param;
  } cases[] = {
      {"{}", "messages"},
      {R"({"messages": "hi"})", "messages"},
      {R"({"messages": []})", "messages"},
      {R"({"messages": [1]})", "messages[0]"},
      {R"({"messages": [{"content": "a"}]})", "messages[0].role"},
      {R"({"messages": [{"role": "robot", "content": "a"}]})", "messages[0].role"},
      {R"({"messages": [{"role": "user", "content": "a"}, {"role": "user"}]})", "messages[1].content"},
      {R"({"messages": [{"role": "user", "content": 1}]})", "messages[0].content"},
      {R"({"messages": [{"role": "user", "content": [1]}]})", "messages[0].content[0]"},
      {R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})", "messages[0].content[0].type"},
      {R"({"messages": [{"role": "user", "content": [{"type": "text"}]}]})", "messages[0].content[0].text"},
      {ChatWith(R"("top_logprobs": 5)"), "top_logprobs"},
      {ChatWith(R"("logprobs": true, "top_logprobs": 21)"), "top_logprobs"},
      {ChatWith(R"("logprobs": 1)"), "logprobs"},
      {ChatWith(R"("max_completion_tokens": 1000)"), "max_completion_tokens"},
      {ChatWith(R"("max_tokens": 0)"), "max_tokens"},
      {ChatWith(R"("tools": {})"), "tools"},
      {ChatWith(R"("tools": [1])"), "tools[0]"},
      {ChatWith(R"("tools": [{"type": "custom"}])"), "tools[0].type"},
      {ChatWith(R"("tools": [{"type": "function"}])"), "tools[0].function"},
      {ChatWith(R"("tools": [{"type": "function", "function": {}}])"), "tools[0].function.name"},
      {ChatWith(R"("tools": [{"type": "function", "function": {"name": "f", "parameters": []}}])"),
       "tools[0].function.parameters"},
      {ChatWith(R"("tool_choice": {"type": "function", "function": {"name": "f"}})"), "tool_choice"},
      {ChatWith(R"("tool_choice": "some")"), "tool_choice"},
      {ChatWith(R"("parallel_tool_calls": 1)"), "parallel_tool_calls"},
      {ChatWith(R"("reasoning_effort": "huge")"), "reasoning_effort"},
      {ChatWith(R"("enable_thinking": "yes")"), "enable_thinking"},
      {ChatWith(R"("documents": [{"text": "a"}])"), "documents"},
      {R"({"messages": [{"role": "user", "content": "a", "tool_calls": [{}]}]})", "messages[0].tool_calls"},
      {R"({"messages": [{"role": "assistant", "tool_calls": 1}]})", "messages[0].tool_calls"},
      {R"({"messages": [{"role": "assistant", "tool_calls": [{"id": "a"}]}]})", "messages[0].tool_calls[0].function"},
      {R"({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1"}}]}]})",
       "messages[0].tool_calls[0].function.arguments"},
      {ChatWith(R"("continue_final_message": true, "add_generation_prompt": true)"), "continue_final_message"},
      {R"({"continue_final_message": true, "messages": [{"role": "assistant", "content": " "}]})",
       "messages[0].content"},
      {ChatWith(R"("tool_choice": "required")"), "tool_choice"},
      {ChatWith(R"("functions": [{}])"), "functions"},
      {ChatWith(R"("modalities": ["audio"])"), "modalities"},
      {ChatWith(R"("response_format": {"type": "json_schema"})"), "response_format.json_schema"},
      {ChatWith(R"("chat_template": "x")"), "chat_template"},
      {ChatWith(R"("chat_template_kwargs": [])"), "chat_template_kwargs"},
      {ChatWith(R"("chat_template_kwargs": {"refuse": true})"), "messages"},
  };
  for (const auto& c : cases) {
    const absl::Status status = ParseChat(c.body).status();
    EXPECT_EQ(ToApiError(status).http_status, 400) << c.body;
    EXPECT_EQ(ToApiError(status).param, c.param) << c.body << ": " << status;
  }
}

TEST(ChatRequest, ContinuesTheLastMessage) {
  const auto prompt = [](const std::string& content) {
    const auto request = ParseChat(
        R"({"continue_final_message": true, "messages": [{"role": "assistant", "content": ")" + content + R"("}]})");
    return PromptOf(request);
  };
  EXPECT_EQ(prompt("One, two"), "assistant:One, two");
  EXPECT_EQ(prompt(" One, two "), "assistant: One, two ") << "where the template keeps the space";
}

TEST(ChatRequest, PassesClientsUsualExtras) {
  for (const char* field :
       {R"("tools": [])", R"("tool_choice": "none")", R"("parallel_tool_calls": true)", R"("user": "me")",
        R"("metadata": {})", R"("store": false)", R"("service_tier": "auto")", R"("modalities": ["text"])"}) {
    EXPECT_TRUE(ParseChat(ChatWith(field)).ok()) << field;
  }
}

TEST(ChatReasoning, SwitchesReachTemplatesThatReadThem) {
  EXPECT_EQ(PromptOf(ParseToolChat(R"("reasoning_effort": "low", "enable_thinking": true)")),
            R"({"enable_thinking":true,"reasoning_effort":"low"};user:hi;assistant:)");
  EXPECT_EQ(PromptOf(ParseToolChat(R"("enable_thinking": true, "chat_template_kwargs": {"enable_thinking": false})")),
            R"({"enable_thinking":false};user:hi;assistant:)")
      << "what names the template's variables wins";
  FakeTextCodec binary;
  binary.read_variables = {"enable_thinking"};
  EXPECT_EQ(PromptOf(ParseToolChat(R"("reasoning_effort": "none")", binary)),
            R"({"enable_thinking":false};user:hi;assistant:)");
  EXPECT_EQ(PromptOf(ParseToolChat(R"("reasoning_effort": "high")", binary)),
            R"({"enable_thinking":true};user:hi;assistant:)");
  FakeTextCodec blind;
  blind.read_variables = {};
  for (const char* field : {R"("reasoning_effort": "low")", R"("enable_thinking": false)"}) {
    EXPECT_THAT(ToApiError(ParseToolChat(field, blind).status()).message, HasSubstr("would have no effect"));
  }
}

TEST(ChatReasoning, IsOpenWhereThePromptEndsWithItsMarker) {
  EXPECT_FALSE(ParseToolChat(R"("user": "u")")->parsing.begins_in_reasoning);
  FakeTextCodec opening;
  opening.opening = "<think>\n";
  const auto request = ParseToolChat(R"("include_reasoning": false)", opening);
  EXPECT_TRUE(request->parsing.begins_in_reasoning);
  EXPECT_FALSE(request->parsing.include_reasoning);
}

}  // namespace
}  // namespace winnow
