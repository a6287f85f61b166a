// What a model's text becomes, format by format. Every case is also fed byte by byte and in random pieces: however the
// text is cut, the message is the same.
#include "router/chat_output/message_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <regex>

namespace winnow {
namespace {

using Cut = std::function<size_t(size_t left)>;  // bytes of the next piece

MessageDelta ParsePieces(const ChatParsing& parsing, std::string_view text, const Cut& cut) {
  int calls = 0;
  const auto parser = MakeMessageParser(parsing, [&calls] { return "id" + std::to_string(calls++); });
  MessageDelta whole;
  while (!text.empty()) {
    const size_t length = std::min(text.size(), cut(text.size()));
    MessageDelta delta;
    parser->Push(text.substr(0, length), &delta);
    whole.Append(std::move(delta));
    text.remove_prefix(length);
  }
  MessageDelta last;
  parser->Finish(&last);
  whole.Append(std::move(last));
  return whole;
}

// "reasoning|content|name(arguments)..." so that a case is a line.
std::string Show(const MessageDelta& message) {
  std::string text = message.reasoning + "|" + message.content + "|";
  for (size_t i = 0; i < message.tool_calls.size(); ++i) {
    const ToolCallDelta& call = message.tool_calls[i];
    EXPECT_EQ(call.index, i);
    EXPECT_EQ(call.id, "id" + std::to_string(i));
    text += call.name + "(" + call.arguments + ")";
  }
  return text;
}

std::string Parse(const ChatParsing& parsing, std::string_view text) {
  const std::string whole = Show(ParsePieces(parsing, text, [](size_t left) { return left; }));
  EXPECT_EQ(Show(ParsePieces(parsing, text, [](size_t) { return 1; })), whole) << "byte by byte: " << text;
  std::mt19937 random(5);
  for (int i = 0; i < 20; ++i) {
    const auto cut = [&](size_t) { return std::uniform_int_distribution<size_t>(1, 9)(random); };
    EXPECT_EQ(Show(ParsePieces(parsing, text, cut)), whole) << "in pieces: " << text;
  }
  return whole;
}

struct Case {
  const char* text;
  const char* expected;
};

TEST(MessageParser, LeavesTextAloneWhereNothingIsLookedFor) {
  for (const char* text : {"", " hi \n", "<think>a</think>", "<tool_call>{\"name\":\"f\"}</tool_call>"}) {
    EXPECT_EQ(Parse({}, text), "|" + std::string(text) + "|");
  }
}

TEST(MessageParser, ReadsHermesCalls) {
  const Case cases[] = {
      {R"(<tool_call>
{"name": "f", "arguments": {"a": [1, "}"], "b": {"c": "\"<tool_call>"}}}
</tool_call>)",
       R"(||f({"a": [1, "}"], "b": {"c": "\"<tool_call>"}}))"},
      {"Let me see.\n<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>\n<tool_call>{\"arguments\": {\"x\": "
       "1}, \"name\": \"g\"}</tool_call>",
       "|Let me see.|f({})g({\"x\": 1})"},
      {R"(<tool_call>{"name": "f"}</tool_call>)", "||f({})"},
      {R"(<tool_call>{"name": "f", "arguments": null}</tool_call>)", "||f({})"},
      {R"(<tool_call>{"name": "f", "arguments": "{\"a\": \"\u00e4\"}"}</tool_call>)", "||f({\"a\": \"ä\"})"},
      {R"(<tool_call>{"id": [1, {}], "name": "f", "type": "function", "parameters": {"a": -1.5e3}}</tool_call> done)",
       R"(|done|f({"a": -1.5e3}))"},
      // Cut off in mid-call: what there is of it.
      {R"(<tool_call>{"name": "f", "arguments": {"a": "lo)", R"(||f({"a": "lo))"},
      // No calls: the text stays.
      {"a < b, <tool_ and  \n", "|a < b, <tool_ and  \n|"},
      {"<tool_call>", "|<tool_call>|"},
      {"<tool_call>{\"name\": \"f", "|<tool_call>{\"name\": \"f|"},
      {"<tool_call>none</tool_call>", "|<tool_call>none</tool_call>|"},
      {R"(<tool_call>{"name": 5, "arguments": {}}</tool_call>)",
       R"(|<tool_call>{"name": 5, "arguments": {}}</tool_call>|)"},
      {R"(<tool_call>{"arguments": {}}</tool_call>)", R"(|<tool_call>{"arguments": {}}</tool_call>|)"},
      {R"(<tool_call>{"name": "f", "arguments": [1]}</tool_call>)",
       R"(|<tool_call>{"name": "f", "arguments": [1]}</tool_call>|)"},
      {"<tool_call>{\"name\" \"f\"}", "|<tool_call>{\"name\" \"f\"}|"},
      {"{\"name\": \"f\", \"arguments\": {}}", "|{\"name\": \"f\", \"arguments\": {}}|"},
  };
  for (const Case& c : cases) EXPECT_EQ(Parse({.tools = ToolFormat::kHermes}, c.text), c.expected);
}

TEST(MessageParser, ReadsLlamaCalls) {
  const Case cases[] = {
      {R"({"name": "f", "parameters": {"a": "b"}})", R"(||f({"a": "b"}))"},
      {" \n{\"type\": \"function\", \"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"parameters\": {\"x\": "
       "2}}",
       "||f({})g({\"x\": 2})"},
      {R"(<|python_tag|>{"name": "f", "parameters": {}})", "||f({})"},
      {R"(I look.<|python_tag|>{"name": "f", "parameters": {}})", "|I look.|f({})"},
      {R"(<|python_tag|>{"name": "f"})", "||f({})"},
      // An answer in JSON that is no call.
      {R"({"name": "Bob", "age": 5})", R"(|{"name": "Bob", "age": 5}|)"},
      {R"({"a": 1} is it)", R"(|{"a": 1} is it|)"},
      {"Hi; {\"name\": \"f\", \"parameters\": {}}", "|Hi; {\"name\": \"f\", \"parameters\": {}}|"},
      {"<|python_tag|>print(1)", "|<|python_tag|>print(1)|"},
  };
  for (const Case& c : cases) EXPECT_EQ(Parse({.tools = ToolFormat::kLlama}, c.text), c.expected);
}

TEST(MessageParser, ReadsMistralCalls) {
  const Case cases[] = {
      {R"([TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}, "id": "x"}, {"name": "g", "arguments": {}}])",
       R"(||f({"a": 1})g({}))"},
      {R"([TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g_2[CALL_ID]12[ARGS]{})", R"(||f({"a": 1})g_2({}))"},
      {R"(Well. [TOOL_CALLS]f{"a": {}})", R"(|Well.|f({"a": {}}))"},
      {"a [TOOL] b [", "|a [TOOL] b [|"},
      {"[TOOL_CALLS][1, 2]", "|[TOOL_CALLS][1, 2]|"},
      {"[TOOL_CALLS]not a call {}", "|[TOOL_CALLS]not a call {}|"},
  };
  for (const Case& c : cases) EXPECT_EQ(Parse({.tools = ToolFormat::kMistral}, c.text), c.expected);
}

TEST(MessageParser, ReadsHarmony) {
  const Case cases[] = {
      {"<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>",
       "hm|Yes.|"},
      {"<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary to=functions.f "
       "<|constrain|>json<|message|>{\"x\": 1}<|call|>",
       "a||f({\"x\": 1})"},
      {"<|channel|>commentary to=functions.f<|message|>{}", "||f({})"},
      {" to=functions.f<|channel|>commentary <|constrain|>json<|message|>{}<|call|>", "||f({})"},
      {"<|channel|>commentary<|message|>I will look.<|end|><|start|>assistant "
       "to=functions.f<|channel|>commentary<|message|>{}",
       "|I will look.|f({})"},
      {"<|channel|>analysis to=python<|message|>print(1)<|call|>", "print(1)||"},
      {"<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|>", "a\n\nb||"},
      {"plain <text> here", "|plain <text> here|"},
      {"<|channel|>final<|message|>a <|b|> c", "|a <|b|> c|"},
  };
  for (const Case& c : cases) EXPECT_EQ(Parse({.reasoning = ReasoningFormat::kHarmony}, c.text), c.expected);
}

TEST(MessageParser, SplitsOffReasoning) {
  const ChatParsing think{.reasoning = ReasoningFormat::kThink};
  const Case cases[] = {
      {"<think>\nhm\n</think>\n\nYes. ", "hm|Yes. |"},
      {" <think></think>Yes", "|Yes|"},
      {"<think>not done \n", "not done||"},
      {"<thin air", "|<thin air|"},
      {" No. <think>a</think>", "| No. <think>a</think>|"},
      {"<think>a </thin b</think>c", "a </thin b|c|"},
  };
  for (const Case& c : cases) EXPECT_EQ(Parse(think, c.text), c.expected);
  ChatParsing open = think;
  open.begins_in_reasoning = true;
  EXPECT_EQ(Parse(open, "\nhm\n</think>\nYes"), "hm|Yes|");
  ChatParsing silent = think;
  silent.include_reasoning = false;
  EXPECT_EQ(Parse(silent, "<think>hm</think>Yes"), "|Yes|");
  ChatParsing with_tools = think;
  with_tools.tools = ToolFormat::kHermes;
  EXPECT_EQ(Parse(with_tools, "<think>call <tool_call>?</think>\n<tool_call>{\"name\":\"f\"}</tool_call>"),
            "call <tool_call>?||f({})");
}

TEST(MessageParser, KeepsTheFirstCallWhereCallsAreNotToBeParallel) {
  const char calls[] = R"(<tool_call>{"name": "f"}</tool_call><tool_call>{"name": "g"}</tool_call>)";
  EXPECT_EQ(Parse({.tools = ToolFormat::kHermes, .parallel_tool_calls = false}, calls), "||f({})");
}

TEST(MessageParser, StreamsArgumentsAsTheyCome) {
  const auto parser = MakeMessageParser({.tools = ToolFormat::kHermes}, [] { return "id"; });
  const auto push = [&](const char* text) {
    MessageDelta delta;
    parser->Push(text, &delta);
    return delta;
  };
  EXPECT_TRUE(push("<tool_call>{\"name\": \"f\", ").empty());
  MessageDelta first = push("\"arguments\": {\"a\": ");
  ASSERT_EQ(first.tool_calls.size(), 1u);
  EXPECT_EQ(first.tool_calls[0].id, "id");
  EXPECT_EQ(first.tool_calls[0].name, "f");
  EXPECT_EQ(first.tool_calls[0].arguments, "{\"a\": ");
  MessageDelta second = push("\"long te");
  ASSERT_EQ(second.tool_calls.size(), 1u);
  EXPECT_EQ(second.tool_calls[0].id, "");
  EXPECT_EQ(second.tool_calls[0].arguments, "\"long te");
}

TEST(ToolCallId, SuitsTheTemplatesOfItsFormat) {
  EXPECT_TRUE(std::regex_match(NewToolCallId(ToolFormat::kMistral), std::regex("[0-9A-Za-z]{9}")));
  EXPECT_TRUE(std::regex_match(NewToolCallId(ToolFormat::kHermes), std::regex("call_[0-9A-Za-z]{24}")));
  EXPECT_NE(NewToolCallId(ToolFormat::kHermes), NewToolCallId(ToolFormat::kHermes));
}

TEST(ChatFormats, AreDetectedFromTheTemplateAndElseFromTheVocabulary) {
  const auto none = [](std::string_view) { return false; };
  const auto formats = [&](std::string_view source) { return DetectChatFormats(source, none); };
  EXPECT_EQ(formats("{{ messages }}"), ChatFormats());
  EXPECT_EQ(formats("{{ '<tool_call>' }}").tools, ToolFormat::kHermes);
  EXPECT_EQ(formats("{{ '<tool_call>\\n<function=' }}").tools, ToolFormat::kNone) << "another format";
  EXPECT_EQ(formats("{{ '<|python_tag|>' }}").tools, ToolFormat::kLlama);
  EXPECT_EQ(formats("{% if role == 'ipython' %}").tools, ToolFormat::kLlama);
  EXPECT_EQ(formats("{{ '[TOOL_CALLS]' }}").tools, ToolFormat::kMistral);
  EXPECT_EQ(formats("{{ '<|channel|>' }}"), (ChatFormats{ToolFormat::kHarmony, ReasoningFormat::kHarmony}));
  EXPECT_EQ(formats("{{ x.split('</think>') }}").reasoning, ReasoningFormat::kThink);
  const auto vocabulary = [](std::string_view token) { return token == "<tool_call>" || token == "</think>"; };
  EXPECT_EQ(DetectChatFormats("{{ messages }}", vocabulary),
            (ChatFormats{ToolFormat::kHermes, ReasoningFormat::kThink}));
}

}  // namespace
}  // namespace winnow
