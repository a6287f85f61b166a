#include "router/openai/request/chat_request.h"

#include <limits>

#include "router/openai/json/api_error.h"
#include "router/openai/request/chat_messages.h"
#include "router/openai/request/constraint_fields.h"
#include "router/openai/request/tool_fields.h"

namespace winnow {
namespace {

absl::StatusOr<ChatParsing> ParsingOf(const ToolFields& tools, const Conversation& conversation, bool include_reasoning,
                                      const ServedModel& model) {
  ChatParsing parsing{.reasoning = model.chat_formats.reasoning,
                      .begins_in_reasoning = conversation.ends_in_reasoning,
                      .include_reasoning = include_reasoning,
                      .parallel_tool_calls = tools.parallel_tool_calls};
  if (tools.tools.is_null()) return parsing;
  if (model.chat_formats.tools == ToolFormat::kNone) {
    return InvalidField("tools",
                        "\"tools\" cannot be served: how this model writes tool calls is not known, so its answers "
                        "cannot be searched for them. The server's option --tool-format names the format.",
                        "unsupported_parameter");
  }
  parsing.tools = model.chat_formats.tools;
  return parsing;
}

std::vector<uint32_t> ShownSpecialTokens(const ChatParsing& parsing, const TextCodec& codec) {
  std::vector<uint32_t> ids;
  std::vector<std::string_view> markers = MarkersOf(parsing.tools);
  const std::vector<std::string_view> more = MarkersOf(parsing.reasoning);
  markers.insert(markers.end(), more.begin(), more.end());
  for (const std::string_view marker : markers) {
    if (const auto id = codec.TokenId(marker)) ids.push_back(*id);
  }
  return ids;
}

// The grammar of the answers, where they are constrained; `parsing` says what may stand before and beside.
absl::Status ConstrainAnswers(const Json& body, const ToolFields& tools, GenerationRequest* request) {
  WINNOW_ASSIGN_OR_RETURN(const std::optional<ConstraintFields> fields, ReadConstraintFields(body));
  if (!fields.has_value() && tools.forced.empty()) return absl::OkStatus();
  if (fields.has_value() && !tools.forced.empty()) {
    return InvalidField(fields->field, absl::StrCat("\"", fields->field,
                                                    "\" and a \"tool_choice\" that forces a call exclude each other."));
  }
  AnswerGrammar answer;
  if (!tools.forced.empty()) {
    const absl::Status added = answer.AddToolCalls(request->parsing.tools, tools.forced, tools.parallel_tool_calls);
    if (!added.ok()) return InvalidField("tool_choice", absl::StrCat("\"tool_choice\": ", added.message(), "."));
  } else if (const absl::Status added = answer.Add(fields->output); !added.ok()) {
    return InvalidField(fields->field, absl::StrCat("\"", fields->field, "\": ", added.message(), "."));
  }
  const std::string field = fields.has_value() ? fields->field : "tool_choice";
  const absl::StatusOr<std::string> grammar =
      answer.Finish({.format = request->parsing.reasoning, .begins_inside = request->parsing.begins_in_reasoning});
  if (!grammar.ok()) return InvalidField(field, absl::StrCat("\"", field, "\": ", grammar.status().message(), "."));
  v1::TokenConstraint& constraint = *request->fields.sampling.mutable_constraint();
  constraint.set_grammar(*grammar);
  constraint.mutable_shown_special_token_ids()->Assign(request->shown_special.begin(), request->shown_special.end());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<GenerationRequest> ParseChatRequest(const Json& body, const ServedModel& model, const TextCodec& codec) {
  GenerationRequest request;
  request.endpoint = Endpoint::kChatCompletions;
  WINNOW_ASSIGN_OR_RETURN(request.fields, ParseCommonFields(body, model, codec, Endpoint::kChatCompletions));

  JsonReader reader(body);
  const TokenLimit max_tokens = ReadTokenLimit(reader);
  const bool logprobs = reader.Bool("logprobs").value_or(false);
  const std::optional<int64_t> top = reader.Int("top_logprobs", 0, kMaxTopLogprobs);
  if (top && *top > 0 && !logprobs) reader.Fail("top_logprobs", "needs \"logprobs\" to be true.");
  if (logprobs) request.top_logprobs = static_cast<uint32_t>(top.value_or(0));
  request.prompt_logprobs = ReadPromptLogprobs(reader, request.fields.stream);
  const bool include_reasoning = reader.Bool("include_reasoning").value_or(true);
  WINNOW_RETURN_IF_ERROR(reader.status());

  WINNOW_ASSIGN_OR_RETURN(const ToolFields tools, ReadToolFields(body));
  WINNOW_ASSIGN_OR_RETURN(Conversation conversation,
                          EncodeConversation(body, tools.tools, PromptBound(body, model), codec));
  WINNOW_ASSIGN_OR_RETURN(request.parsing, ParsingOf(tools, conversation, include_reasoning, model));
  request.shown_special = ShownSpecialTokens(request.parsing, codec);
  WINNOW_RETURN_IF_ERROR(ConstrainAnswers(body, tools, &request));
  GenerationRequest::Prompt prompt{.token_ids = std::move(conversation.token_ids)};
  WINNOW_RETURN_IF_ERROR(TruncatePrompt(reader, max_tokens, model, &prompt.token_ids));
  WINNOW_ASSIGN_OR_RETURN(prompt.max_tokens,
                          ResolveMaxTokens(prompt.token_ids.size(), max_tokens, std::numeric_limits<uint32_t>::max(),
                                           request.fields.selection, model, "messages"));
  WINNOW_RETURN_IF_ERROR(CheckMinTokens(request.fields.sampling, prompt.max_tokens));
  request.prompts.push_back(std::move(prompt));
  return request;
}

}  // namespace winnow
