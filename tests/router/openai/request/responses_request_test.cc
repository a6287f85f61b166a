#include "router/openai/request/responses_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "router/openai/json/api_error.h"
#include "tests/router/openai/fake_text_codec.h"

namespace winnow {
namespace {

using ::testing::HasSubstr;

ServedModel TestModel() {
  return {.id = "org/tiny",
          .max_context_tokens = 1000,
          .vocab_size = FakeTextCodec::kVocabSize,
          .max_budget_tokens = 4096,
          .default_selection = {},
          .chat_formats = {.tools = ToolFormat::kHermes, .reasoning = ReasoningFormat::kThink}};
}

absl::StatusOr<GenerationRequest> Parse(const std::string& body) {
  WINNOW_ASSIGN_OR_RETURN(const Json parsed, ParseJsonObject(body));
  return ParseResponsesRequest(parsed, TestModel(), FakeTextCodec());
}

std::string PromptOf(const std::string& body) {
  const absl::StatusOr<GenerationRequest> request = Parse(body);
  EXPECT_TRUE(request.ok()) << request.status();
  return request.ok() ? FakeTextCodec().Decode(request->prompts[0].token_ids, true) : "";
}

TEST(ResponsesRequest, ItemsBecomeTheMessagesOfAChat) {
  EXPECT_EQ(PromptOf(R"({"input": "hi"})"), "user:hi;assistant:");
  EXPECT_EQ(PromptOf(R"({"instructions": "Be kind.", "input": [
      {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
      {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
       "content": [{"type": "output_text", "text": "c", "annotations": []}]},
      {"type": "message", "role": "developer", "content": "d"}]})"),
            "system:Be kind.;user:a\nb;assistant:c;developer:d;assistant:");
}

// Reasoning, text and calls in a row are one message; what comes behind a call's output is another.
TEST(ResponsesRequest, WhatAnAssistantDidInARowIsOneMessage) {
  EXPECT_EQ(PromptOf(R"({"input": [
      {"role": "user", "content": "u"},
      {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "r"}]},
      {"role": "assistant", "content": "t"},
      {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{\"x\":1}"},
      {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{}"},
      {"type": "function_call_output", "call_id": "c1", "output": "one"},
      {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "two"}]}]})"),
            R"(user:u;assistant:t[{"id":"c1","type":"function","function":{"name":"f","arguments":{"x":1}}},)"
            R"({"id":"c2","type":"function","function":{"name":"g","arguments":{}}}];tool:one;tool:two;assistant:)");
}

TEST(ResponsesRequest, FieldsMeanWhatThoseOfChatsDo) {
  const GenerationRequest request = *Parse(R"({"input": "x", "max_output_tokens": 7, "temperature": 0.5, "stream": true,
      "include": ["message.output_text.logprobs"], "top_logprobs": 2, "parallel_tool_calls": false,
      "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": true}],
      "tool_choice": {"type": "function", "name": "f"}, "reasoning": {"effort": "low"}, "store": false,
      "metadata": {"a": "b"}, "stream_options": {"include_usage": true}, "winnow": {"budget": 64}})");
  EXPECT_EQ(request.endpoint, Endpoint::kResponses);
  EXPECT_EQ(request.prompts[0].max_tokens, 7u);
  EXPECT_EQ(request.fields.sampling.temperature(), 0.5f);
  EXPECT_TRUE(request.fields.stream);
  EXPECT_EQ(request.top_logprobs, 2u);
  EXPECT_EQ(request.fields.selection.budget_tokens, 64u);
  EXPECT_TRUE(request.fields.sampling.has_constraint()) << "the call is forced";
  EXPECT_FALSE(request.parsing.parallel_tool_calls);
  EXPECT_EQ(request.echoed["metadata"]["a"], "b");
  EXPECT_TRUE(
      Parse(R"({"input": "x", "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "integer"},
      "strict": true}}})")
          ->fields.sampling.has_constraint());
}

TEST(ResponsesRequest, ErrorsNameTheFieldsAsTheyAreCalledHere) {
  const struct {
    const char* fields;
    const char* param;
  } cases[] = {
      {R"("inputs": "x")", "inputs"},
      {R"("messages": [])", "messages"},
      {R"("model": "gpt")", "model"},
      {R"("input": 5)", "input"},
      {R"("input": [])", "input"},
      {R"("input": [1])", "input[0]"},
      {R"("input": [{"role": "wizard", "content": "x"}])", "input[0].role"},
      {R"("instructions": "i", "input": [{"role": "user", "content": "x"}, {"role": "wizard", "content": "x"}])",
       "input[1].role"},
      {R"("input": [{"role": "user", "content": [{"type": "input_image"}]}])", "input[0].content[0].type"},
      {R"("input": [{"type": "item_reference", "id": "x"}])", "input[0]"},
      {R"("input": [{"type": "web_search_call"}])", "input[0].type"},
      {R"("input": [{"type": "function_call", "call_id": "a", "name": "f"}])", "input[0].arguments"},
      {R"("input": "x", "max_output_tokens": 5000)", "max_output_tokens"},
      {R"("input": "x", "previous_response_id": "resp_1")", "previous_response_id"},
      {R"("input": "x", "store": true)", "store"},
      {R"("input": "x", "tools": [{"type": "web_search"}])", "tools[0].type"},
      {R"("input": "x", "tools": [{"type": "function", "name": ""}])", "tools[0].name"},
      {R"("input": "x", "text": {"format": {"type": "xml"}})", "text.format.type"},
      {R"("input": "x", "text": {"format": {"type": "json_schema", "schema": {"not": {}}}})", "text.format"},
      {R"("input": "x", "text": {"verbosity": "low"})", "text.verbosity"},
      {R"("input": "x", "reasoning": {"effort": "huge"})", "reasoning.effort"},
      {R"("input": "x", "reasoning": {"summary": "concise"})", "reasoning.summary"},
      {R"("input": "x", "include": ["file_search_call.results"])", "include[0]"},
  };
  for (const auto& c : cases) {
    const absl::Status status = Parse(absl::StrCat("{", c.fields, "}")).status();
    EXPECT_GE(ToApiError(status).http_status, 400) << c.fields;
    EXPECT_EQ(ToApiError(status).param, c.param) << c.fields << ": " << status;
    if (std::string_view(c.param) == "model") continue;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.param));
  }
  EXPECT_EQ(ToApiError(Parse("{}").status()).code, "missing_required_parameter");
}

}  // namespace
}  // namespace winnow
