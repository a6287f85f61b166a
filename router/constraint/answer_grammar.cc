#include "router/constraint/answer_grammar.h"

#include <set>
#include <utility>

#include "common/grammar/automaton.h"
#include "common/grammar/grammar_text.h"
#include "common/grammar/regex_parser.h"
#include "common/json_schema/json_grammar.h"
#include "common/json_schema/schema_grammar.h"
#include "common/tokenizer/json_node.h"
#include "common/tokenizer/utf8.h"

namespace winnow {
namespace {

using ExprId = Grammar::ExprId;
using Json = nlohmann::ordered_json;

constexpr uint32_t kMaxSpaceBehindReasoning = 8;

absl::Status CheckSize(std::string_view what, size_t bytes) {
  if (bytes <= AnswerGrammar::kMaxSourceBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(AbslSv(what), " has ", bytes, " bytes, at most ", AnswerGrammar::kMaxSourceBytes));
}

}  // namespace

absl::Status AnswerGrammar::Add(const v1::StructuredOutput& output) {
  switch (output.kind_case()) {
    case v1::StructuredOutput::kJsonSchema:
      return AddJson(output.json_schema(), output.compact(), output.closed());
    case v1::StructuredOutput::kJsonObject:
      alternatives_.push_back(JsonGrammar(grammar_, output.compact()).AnyObject());
      return absl::OkStatus();
    case v1::StructuredOutput::kRegex: {
      WINNOW_RETURN_IF_ERROR(CheckSize("the regular expression", output.regex().size()));
      WINNOW_ASSIGN_OR_RETURN(alternatives_.emplace_back(), AddRegex(output.regex(), {}, grammar_));
      return absl::OkStatus();
    }
    case v1::StructuredOutput::kChoices: {
      const auto& texts = output.choices().texts();
      if (texts.empty()) return absl::InvalidArgumentError("there are no choices");
      if (static_cast<size_t>(texts.size()) > kMaxChoices) {
        return absl::InvalidArgumentError(absl::StrCat(texts.size(), " choices, at most ", kMaxChoices));
      }
      size_t bytes = 0;
      std::vector<ExprId> choices;
      for (const std::string& text : texts) {
        if (FindInvalidUtf8(text) != std::string_view::npos) return absl::InvalidArgumentError("a choice is not UTF-8");
        bytes += text.size();
        choices.push_back(grammar_.Bytes(text));
      }
      alternatives_.push_back(grammar_.Choice(std::move(choices)));
      return CheckSize("the list of choices", bytes);
    }
    case v1::StructuredOutput::kGrammar:
      return AddGrammarText(output.grammar());
    case v1::StructuredOutput::KIND_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("one of json_schema, json_object, regex, choices and grammar must be set");
}

absl::Status AnswerGrammar::AddJson(const std::string& text, bool compact, bool closed) {
  WINNOW_RETURN_IF_ERROR(CheckSize("the schema", text.size()));
  WINNOW_RETURN_IF_ERROR(ParseBoundedJson(text, kMaxSchemaDepth).status());
  const Json schema = Json::parse(text);
  WINNOW_ASSIGN_OR_RETURN(alternatives_.emplace_back(),
                          AddJsonSchema(schema, {.compact = compact, .closed = closed}, grammar_));
  return absl::OkStatus();
}

absl::Status AnswerGrammar::AddGrammarText(const std::string& text) {
  WINNOW_RETURN_IF_ERROR(CheckSize("the grammar", text.size()));
  WINNOW_ASSIGN_OR_RETURN(Grammar parsed, ParseGrammarText(text));
  if (!alternatives_.empty()) return absl::InvalidArgumentError("a grammar cannot be one of several alternatives");
  grammar_ = std::move(parsed);
  alternatives_.push_back(grammar_.Call(grammar_.root()));
  return absl::OkStatus();
}

absl::StatusOr<ExprId> AnswerGrammar::Call(std::string_view arguments_key, const CallableFunction& function) {
  JsonGrammar json(grammar_, /*compact=*/false);
  ExprId arguments = json.AnyObject();
  if (!function.parameters.is_null()) {
    WINNOW_RETURN_IF_ERROR(CheckSize("the schema", function.parameters.dump().size()));
    absl::StatusOr<ExprId> schema = AddJsonSchema(function.parameters, {.closed = function.closed}, grammar_);
    if (!schema.ok()) return Annotate(schema.status(), function.path);
    arguments = *schema;
  }
  const ExprId name = json.Member(json.Key("name"), json.Constant(Json(function.name)));
  return json.Object(grammar_.Sequence({name, json.Comma(), json.Member(json.Key(arguments_key), arguments)}));
}

absl::Status AnswerGrammar::AddToolCalls(ToolFormat format, const std::vector<CallableFunction>& functions,
                                         bool several) {
  std::vector<ExprId> calls;
  for (const CallableFunction& function : functions) {
    WINNOW_ASSIGN_OR_RETURN(calls.emplace_back(),
                            Call(format == ToolFormat::kLlama ? "parameters" : "arguments", function));
  }
  const ExprId call = grammar_.Call(grammar_.AddRule("call", grammar_.Choice(std::move(calls))));
  JsonGrammar json(grammar_, /*compact=*/false);
  const auto list = [&](ExprId item, ExprId between) {
    const ExprId more = grammar_.Repeat(grammar_.Sequence({between, item}), 0, std::nullopt);
    return several ? grammar_.Sequence({item, more}) : item;
  };
  switch (format) {
    case ToolFormat::kHermes: {
      const ExprId marked = grammar_.Call(
          grammar_.AddRule("tool-call", grammar_.Sequence({grammar_.Bytes("<tool_call>"), json.Space(), call,
                                                           json.Space(), grammar_.Bytes("</tool_call>")})));
      alternatives_.push_back(list(marked, json.Space()));
      return absl::OkStatus();
    }
    case ToolFormat::kLlama:
      alternatives_.push_back(list(call, grammar_.Sequence({grammar_.Bytes(";"), json.Space()})));
      return absl::OkStatus();
    case ToolFormat::kMistral:
      alternatives_.push_back(
          grammar_.Sequence({grammar_.Bytes("[TOOL_CALLS]"), json.Space(), json.Array(list(call, json.Comma()))}));
      return absl::OkStatus();
    case ToolFormat::kHarmony:
    case ToolFormat::kNone:
      break;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("calls cannot be forced in the tool format \"", AbslSv(ToolFormatName(format)), "\""));
}

// Any text that holds `end` at its end and nowhere else: a rule for each part of `end` that the text may end with.
ExprId AnswerGrammar::TextUntil(std::string_view end) {
  std::vector<Grammar::RuleId> rules;
  for (size_t i = 0; i < end.size(); ++i) rules.push_back(grammar_.AddRule("reasoning"));
  const std::set<char> letters(end.begin(), end.end());
  for (size_t matched = 0; matched < end.size(); ++matched) {
    std::vector<ExprId> parts;
    std::vector<CodePointRange> known;
    for (const char letter : letters) {
      known.push_back({static_cast<char32_t>(letter), static_cast<char32_t>(letter)});
      std::string text(end.substr(0, matched));
      text += letter;
      size_t next = std::min(text.size(), end.size());
      while (!std::string_view(text).ends_with(end.substr(0, next))) --next;
      const ExprId rest = next == end.size() ? grammar_.Empty() : grammar_.Call(rules[next]);
      parts.push_back(grammar_.Sequence({grammar_.Bytes(std::string(1, letter)), rest}));
    }
    parts.push_back(grammar_.Sequence({grammar_.Character(known, /*negated=*/true), grammar_.Call(rules[0])}));
    grammar_.Define(rules[matched], grammar_.Choice(std::move(parts)));
  }
  return grammar_.Call(rules[0]);
}

absl::StatusOr<std::string> AnswerGrammar::Finish(const AnswerReasoning& reasoning) {
  ExprId answer = grammar_.Choice(alternatives_);
  if (reasoning.format == ReasoningFormat::kHarmony) {
    return absl::InvalidArgumentError("answers in the channels of harmony cannot be constrained");
  }
  if (reasoning.format == ReasoningFormat::kThink) {
    const ExprId space =
        grammar_.Repeat(grammar_.Character({{'\t', '\n'}, {'\r', '\r'}, {' ', ' '}}), 0, kMaxSpaceBehindReasoning);
    ExprId thought = grammar_.Sequence({TextUntil("</think>"), space});
    if (!reasoning.begins_inside) {
      thought = grammar_.Optional(grammar_.Sequence({grammar_.Bytes("<think>"), thought}));
    }
    answer = grammar_.Sequence({thought, answer});
  }
  grammar_.set_root(grammar_.AddRule("answer", answer));
  WINNOW_RETURN_IF_ERROR(Automaton::Compile(grammar_).status());
  return GrammarText(grammar_);
}

}  // namespace winnow
