#include "router/constraint/answer_grammar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "common/grammar/automaton.h"
#include "common/grammar/grammar_states.h"
#include "common/grammar/grammar_text.h"

namespace winnow {
namespace {

using testing::HasSubstr;
using Json = nlohmann::ordered_json;

bool Matches(const std::string& grammar, std::string_view text) {
  const Automaton automaton = *Automaton::Compile(*ParseGrammarText(grammar));
  GrammarStates states(automaton);
  GrammarStates::StateId state = states.Start();
  for (const char c : text) state = states.Next(state, static_cast<uint8_t>(c));
  return states.accepts(state);
}

v1::StructuredOutput Regex(const std::string& regex) {
  v1::StructuredOutput output;
  output.set_regex(regex);
  return output;
}

std::string GrammarOf(const v1::StructuredOutput& output, const AnswerReasoning& reasoning = {}) {
  AnswerGrammar answer;
  EXPECT_TRUE(answer.Add(output).ok());
  const absl::StatusOr<std::string> grammar = answer.Finish(reasoning);
  EXPECT_TRUE(grammar.ok()) << grammar.status();
  return grammar.value_or("");
}

TEST(AnswerGrammar, HasEveryKindOfOutput) {
  EXPECT_TRUE(Matches(GrammarOf(Regex("a+")), "aa"));
  v1::StructuredOutput output;
  output.set_json_object(true);
  EXPECT_TRUE(Matches(GrammarOf(output), R"({"a": 1})"));
  output.set_compact(true);
  EXPECT_FALSE(Matches(GrammarOf(output), R"({"a": 1})"));
  output.set_json_schema(R"({"type": "object", "properties": {"b": {}, "a": {}}})");
  EXPECT_TRUE(Matches(GrammarOf(output), R"({"b":1,"a":2,"c":3})"));
  output.set_closed(true);
  EXPECT_FALSE(Matches(GrammarOf(output), R"({"b":1,"a":2,"c":3})"));
  output.mutable_choices()->add_texts("yes");
  output.mutable_choices()->add_texts("n\"o\n");
  EXPECT_TRUE(Matches(GrammarOf(output), "n\"o\n"));
  output.set_grammar("root ::= word \"!\"\nword ::= [a-z]+");
  EXPECT_TRUE(Matches(GrammarOf(output), "hi!"));
}

TEST(AnswerGrammar, LetsReasoningStandBeforeWhatIsConstrained) {
  const std::string may = GrammarOf(Regex("[0-9]+"), {.format = ReasoningFormat::kThink});
  EXPECT_TRUE(Matches(may, "12"));
  EXPECT_TRUE(Matches(may, "<think>a <</think </thi\xC3\xA9</think>\n\n12"));
  EXPECT_FALSE(Matches(may, "<think>a</think>b</think>12"));
  EXPECT_FALSE(Matches(may, "a</think>12"));
  const std::string inside = GrammarOf(Regex("[0-9]+"), {.format = ReasoningFormat::kThink, .begins_inside = true});
  EXPECT_TRUE(Matches(inside, "\nI think</think>12"));
  EXPECT_FALSE(Matches(inside, "12"));
}

const std::vector<CallableFunction> kFunctions = {
    {.name = "add",
     .parameters = Json::parse(R"({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})"),
     .closed = true,
     .path = "tools[0].function.parameters"},
    {.name = "now", .parameters = Json(), .path = "tools[1].function.parameters"}};

std::string CallsOf(ToolFormat format, bool several) {
  AnswerGrammar answer;
  EXPECT_TRUE(answer.AddToolCalls(format, kFunctions, several).ok());
  return *answer.Finish({});
}

TEST(AnswerGrammar, HasToolCallsInTheFormatOfTheModel) {
  const std::string one = R"({"name": "add", "arguments": {"a": 1}})", two = R"({"name": "now", "arguments": {}})";
  const std::string hermes = CallsOf(ToolFormat::kHermes, true);
  EXPECT_TRUE(Matches(hermes, "<tool_call>\n" + one + "\n</tool_call>"));
  EXPECT_TRUE(Matches(hermes, "<tool_call>" + one + "</tool_call>\n<tool_call>" + two + "</tool_call>"));
  EXPECT_FALSE(Matches(hermes, "hi <tool_call>" + one + "</tool_call>"));
  EXPECT_FALSE(Matches(hermes, R"(<tool_call>{"name": "add", "arguments": {"a": "x"}}</tool_call>)"));
  EXPECT_FALSE(Matches(hermes, R"(<tool_call>{"name": "sub", "arguments": {}}</tool_call>)"));
  EXPECT_FALSE(Matches(CallsOf(ToolFormat::kHermes, false),
                       "<tool_call>" + one + "</tool_call><tool_call>" + two + "</tool_call>"));
  EXPECT_TRUE(Matches(CallsOf(ToolFormat::kLlama, true),
                      R"({"name": "add", "parameters": {"a": 1}}; {"name": "now", "parameters": {"x": []}})"));
  EXPECT_TRUE(Matches(CallsOf(ToolFormat::kMistral, true), "[TOOL_CALLS][" + one + ", " + two + "]"));
  AnswerGrammar harmony;
  EXPECT_THAT(std::string(harmony.AddToolCalls(ToolFormat::kHarmony, kFunctions, true).message()),
              HasSubstr("\"harmony\""));
}

TEST(AnswerGrammar, NamesWhatIsWrong) {
  const auto error_of = [](const v1::StructuredOutput& output) {
    AnswerGrammar answer;
    const absl::Status added = answer.Add(output);
    const absl::Status status = added.ok() ? answer.Finish({}).status() : added;
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(error_of(v1::StructuredOutput()), HasSubstr("must be set"));
  EXPECT_THAT(error_of(Regex("(")), HasSubstr("\")\" is missing"));
  EXPECT_THAT(error_of(Regex("[a-z]{1000000}")), HasSubstr("too large"));
  EXPECT_THAT(error_of(Regex(std::string(300 << 10, 'a'))), HasSubstr("bytes, at most"));
  v1::StructuredOutput output;
  output.set_json_schema("{");
  EXPECT_FALSE(error_of(output).empty());
  output.set_json_schema(R"({"not": {}})");
  EXPECT_THAT(error_of(output), HasSubstr("keyword \"not\" is not supported at #"));
  output.set_json_schema(std::string(100, '[') + std::string(100, ']'));
  EXPECT_FALSE(error_of(output).empty());
  output.mutable_choices();
  EXPECT_THAT(error_of(output), HasSubstr("no choices"));
  AnswerGrammar answer;
  const absl::Status added = answer.AddToolCalls(
      ToolFormat::kHermes,
      {{.name = "f", .parameters = Json::parse(R"({"if": {}})"), .path = "tools[0].function.parameters"}}, true);
  EXPECT_THAT(std::string(added.message()), HasSubstr("tools[0].function.parameters: keyword \"if\""));
}

}  // namespace
}  // namespace winnow
