#include "router/openai/request/responses_request.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "router/openai/json/api_error.h"
#include "router/openai/request/chat_request.h"
#include "router/openai/request/responses_input.h"

namespace winnow {
namespace {

constexpr std::string_view kLogprobs = "message.output_text.logprobs";

// Fields that mean something else in a chat, or nothing.
constexpr std::string_view kOwnFields[] = {
    "input",      "instructions",         "max_output_tokens", "text",       "reasoning", "include",
    "tools",      "tool_choice",          "stream_options",    "background", "prompt",    "max_tool_calls",
    "truncation", "previous_response_id", "conversation",      "store",      "metadata",  "top_logprobs"};

absl::Status Bad(std::string_view path, std::string_view problem) {
  return InvalidField(path, absl::StrCat("\"", AbslSv(path), "\" ", AbslSv(problem)));
}

// "tools" without the level that chats have around a function.
absl::StatusOr<Json> ChatTools(const Json& tools) {
  if (!tools.is_array()) return InvalidField("tools", "\"tools\" must be a list.", "invalid_type");
  Json list = Json::array();
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string path = absl::StrCat("tools[", i, "]");
    if (!tools[i].is_object()) return Bad(path, "must be an object.");
    if (tools[i].value("type", Json()) != "function") {
      return Bad(path + ".type", "must be \"function\": this server knows no other tools.");
    }
    WINNOW_RETURN_IF_ERROR(CheckKeys(tools[i], path + ".", {"type", "name", "description", "parameters", "strict"}));
    Json function = Json::object();
    for (const auto& [key, value] : tools[i].items()) {
      if (key != "type" && !value.is_null()) function[key] = value;
    }
    list.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return list;
}

Json ChatToolChoice(const Json& choice) {
  if (!choice.is_object() || choice.value("type", Json()) != "function") return choice;
  return {{"type", "function"}, {"function", {{"name", choice.value("name", Json())}}}};
}

absl::StatusOr<Json> ChatResponseFormat(const Json& format) {
  if (!format.is_object()) return Bad("text.format", "must be an object.");
  Json chat_format = format;
  if (format.value("type", Json()) != "json_schema") return chat_format;
  Json schema = Json::object();
  for (const auto& [key, value] : format.items()) {
    if (key != "type") schema[key] = value;
  }
  chat_format = {{"type", "json_schema"}, {"json_schema", std::move(schema)}};
  return chat_format;
}

absl::Status ReadText(const Json& text, Json* chat) {
  if (!text.is_object()) return Bad("text", "must be an object.");
  WINNOW_RETURN_IF_ERROR(CheckKeys(text, "text.", {"format", "verbosity"}));
  JsonReader reader(text, "text.");
  if (const Json* format = reader.Find("format")) {
    WINNOW_ASSIGN_OR_RETURN((*chat)["response_format"], ChatResponseFormat(*format));
  }
  if (const Json* verbosity = reader.Find("verbosity")) (*chat)["verbosity"] = *verbosity;
  return absl::OkStatus();
}

absl::Status ReadReasoning(const Json& reasoning, Json* chat) {
  if (!reasoning.is_object()) return Bad("reasoning", "must be an object.");
  WINNOW_RETURN_IF_ERROR(CheckKeys(reasoning, "reasoning.", {"effort", "summary", "generate_summary"}));
  JsonReader reader(reasoning, "reasoning.");
  if (const Json* effort = reader.Find("effort")) (*chat)["reasoning_effort"] = *effort;
  for (const char* summary : {"summary", "generate_summary"}) {
    const Json* wanted = reader.Find(summary);
    // Without a summary there is the reasoning itself.
    if (wanted != nullptr && *wanted != "auto" && *wanted != "detailed") {
      return InvalidField(absl::StrCat("reasoning.", summary),
                          absl::StrCat("\"reasoning.", summary,
                                       "\" is not supported by this server: reasoning items have the whole text."),
                          "unsupported_parameter");
    }
  }
  return absl::OkStatus();
}

absl::Status ReadInclude(const Json& include, Json* chat) {
  if (!include.is_array()) return InvalidField("include", "\"include\" must be a list.", "invalid_type");
  for (size_t i = 0; i < include.size(); ++i) {
    if (include[i] == kLogprobs) {
      (*chat)["logprobs"] = true;
    } else if (include[i] != "reasoning.encrypted_content") {  // reasoning is told in the open
      return InvalidField(
          absl::StrCat("include[", i, "]"),
          absl::StrCat("\"include[", i, "]\" must be \"", AbslSv(kLogprobs), "\" or \"reasoning.encrypted_content\"."),
          "unsupported_parameter");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Json> ChatBody(const Json& body, Json messages) {
  Json chat = Json::object();
  for (const auto& [name, value] : body.items()) {
    if (std::find(std::begin(kOwnFields), std::end(kOwnFields), name) == std::end(kOwnFields)) chat[name] = value;
  }
  chat["messages"] = std::move(messages);
  JsonReader reader(body);
  if (const Json* limit = reader.Find("max_output_tokens")) chat["max_completion_tokens"] = *limit;
  if (const Json* tools = reader.Find("tools")) {
    WINNOW_ASSIGN_OR_RETURN(chat["tools"], ChatTools(*tools));
  }
  if (const Json* choice = reader.Find("tool_choice")) chat["tool_choice"] = ChatToolChoice(*choice);
  if (const Json* text = reader.Find("text")) WINNOW_RETURN_IF_ERROR(ReadText(*text, &chat));
  if (const Json* reasoning = reader.Find("reasoning")) WINNOW_RETURN_IF_ERROR(ReadReasoning(*reasoning, &chat));
  if (const Json* include = reader.Find("include")) WINNOW_RETURN_IF_ERROR(ReadInclude(*include, &chat));
  if (const Json* options = reader.Find("stream_options")) {
    if (!options->is_object()) return Bad("stream_options", "must be an object.");
    WINNOW_RETURN_IF_ERROR(CheckKeys(*options, "stream_options.", {"include_obfuscation", "include_usage"}));
  }
  if (const Json* top = reader.Find("top_logprobs"); top != nullptr && chat.contains("logprobs")) {
    chat["top_logprobs"] = *top;
  }
  return chat;
}

// What a response repeats of its request, with the defaults.
Json Echoed(const Json& body) {
  Json echoed = {{"background", false},
                 {"instructions", nullptr},
                 {"max_output_tokens", nullptr},
                 {"metadata", Json::object()},
                 {"parallel_tool_calls", true},
                 {"previous_response_id", nullptr},
                 {"reasoning", {{"effort", nullptr}, {"summary", nullptr}}},
                 {"store", false},
                 {"temperature", 1.0},
                 {"text", {{"format", {{"type", "text"}}}}},
                 {"tool_choice", "auto"},
                 {"tools", Json::array()},
                 {"top_logprobs", 0},
                 {"top_p", 1.0},
                 {"truncation", "disabled"},
                 {"user", nullptr}};
  for (auto& [name, value] : echoed.items()) {
    if (const auto given = body.find(name); given != body.end() && !given->is_null()) value = *given;
  }
  return echoed;
}

// What a field of the chat is called in the request.
std::string ResponsesField(const std::string& field, const std::vector<std::string>& origins) {
  constexpr std::string_view kMessages = "messages[";
  if (absl::StartsWith(field, AbslSv(kMessages))) {
    const size_t end = field.find(']');
    size_t index = 0;
    if (end != field.npos && absl::SimpleAtoi(field.substr(kMessages.size(), end - kMessages.size()), &index) &&
        index < origins.size()) {
      return origins[index] + field.substr(end + 1);
    }
  }
  const std::pair<std::string_view, std::string_view> names[] = {{"messages", "input"},
                                                                 {"max_completion_tokens", "max_output_tokens"},
                                                                 {"response_format.json_schema", "text.format"},
                                                                 {"response_format", "text.format"},
                                                                 {"reasoning_effort", "reasoning.effort"},
                                                                 {"verbosity", "text.verbosity"}};
  for (const auto& [name, here] : names) {
    if (absl::StartsWith(field, AbslSv(name))) return std::string(here) + field.substr(name.size());
  }
  const size_t function = field.find("].function");
  if (absl::StartsWith(field, "tools[") && function != field.npos) {
    return field.substr(0, function + 1) + field.substr(function + std::string_view("].function").size());
  }
  return field;
}

}  // namespace

absl::StatusOr<GenerationRequest> ParseResponsesRequest(const Json& body, const ServedModel& model,
                                                        const TextCodec& codec) {
  JsonReader reader(body);
  const std::string name = reader.String("model").value_or(model.id);
  WINNOW_RETURN_IF_ERROR(reader.status());
  if (!model.HasName(name)) return ModelNotFound(name, model);
  WINNOW_RETURN_IF_ERROR(CheckFields(body, Endpoint::kResponses));
  WINNOW_ASSIGN_OR_RETURN(ResponsesMessages input, ReadResponsesInput(body));
  WINNOW_ASSIGN_OR_RETURN(const Json chat, ChatBody(body, std::move(input.messages)));
  absl::StatusOr<GenerationRequest> request = ParseChatRequest(chat, model, codec);
  if (!request.ok()) {
    return RenameField(request.status(),
                       [&](const std::string& field) { return ResponsesField(field, input.origins); });
  }
  if (request->fields.resumable) {
    return InvalidField("winnow.resumable",
                        "\"winnow.resumable\" is not served for responses: chats and completions have it.");
  }
  request->endpoint = Endpoint::kResponses;
  request->echoed = Echoed(body);
  return request;
}

}  // namespace winnow
