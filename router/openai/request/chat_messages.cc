#include "router/openai/request/chat_messages.h"

#include <algorithm>
#include <array>

#include "router/openai/json/api_error.h"
#include "router/openai/json/json_reader.h"
#include "router/openai/request/generation_request.h"
#include "router/openai/request/template_variables.h"

namespace winnow {
namespace {

constexpr std::string_view kSpace = " \t\r\n";
constexpr std::array<std::string_view, 6> kRoles = {"system", "developer", "user", "assistant", "tool", "function"};

absl::Status BadMessage(size_t index, std::string_view field, std::string_view problem) {
  const std::string path = absl::StrCat("messages[", index, "]", field.empty() ? "" : ".", AbslSv(field));
  return InvalidField(path, absl::StrCat("\"", path, "\" ", AbslSv(problem)));
}

absl::StatusOr<std::string> JoinParts(const Json& parts, size_t index) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Json& part = parts[i];
    const std::string field = absl::StrCat("content[", i, "]");
    if (!part.is_object()) return BadMessage(index, field, "must be an object.");
    const auto type = part.find("type");
    if (type == part.end() || !type->is_string()) return BadMessage(index, field + ".type", "must be a string.");
    // What an assistant refused with is a part of another name.
    const char* key = *type == "refusal" ? "refusal" : "text";
    if (*type != key) return BadMessage(index, field + ".type", "must be \"text\": this server reads text only.");
    const auto value = part.find(key);
    if (value == part.end() || !value->is_string()) {
      return BadMessage(index, absl::StrCat(field, ".", key), "must be a string.");
    }
    if (i > 0) text += '\n';
    text += value->get_ref<const std::string&>();
  }
  return text;
}

// The calls with their arguments as objects.
absl::StatusOr<Json> NormalizeToolCalls(const Json& calls, size_t index) {
  if (!calls.is_array()) return BadMessage(index, "tool_calls", "must be a list.");
  Json normalized = calls;
  for (size_t i = 0; i < normalized.size(); ++i) {
    const std::string field = absl::StrCat("tool_calls[", i, "]");
    Json& call = normalized[i];
    if (!call.is_object() || !call.contains("function") || !call["function"].is_object()) {
      return BadMessage(index, field + ".function", "must be an object.");
    }
    Json& function = call["function"];
    if (!function.contains("name") || !function["name"].is_string()) {
      return BadMessage(index, field + ".function.name", "must be a string.");
    }
    const auto arguments = function.find("arguments");
    if (arguments == function.end() || arguments->is_null()) {
      function["arguments"] = Json::object();
      continue;
    }
    if (!arguments->is_string()) continue;
    const auto& text = arguments->get_ref<const std::string&>();
    absl::StatusOr<Json> parsed = ParseJsonObject(text.empty() ? "{}" : text);
    if (!parsed.ok()) {
      return BadMessage(index, field + ".function.arguments",
                        absl::StrCat("must be the text of a JSON object of at most ", kMaxJsonDepth, " levels."));
    }
    function["arguments"] = *std::move(parsed);
  }
  return normalized;
}

// The message with its content as one string, and its tool calls as templates expect them.
absl::StatusOr<Json> NormalizeMessage(const Json& message, size_t index) {
  if (!message.is_object()) return BadMessage(index, "", "must be an object.");
  const auto role = message.find("role");
  if (role == message.end() || !role->is_string()) return BadMessage(index, "role", "must be a string.");
  const std::string& name = role->get_ref<const std::string&>();
  if (std::find(kRoles.begin(), kRoles.end(), name) == kRoles.end()) {
    return BadMessage(index, "role", "must be one of system, developer, user, assistant, tool, function.");
  }
  Json normalized = message;
  const auto calls = message.find("tool_calls");
  const bool has_calls = calls != message.end() && !calls->is_null() && !(calls->is_array() && calls->empty());
  if (has_calls) {
    if (name != "assistant") return BadMessage(index, "tool_calls", "may stand in messages of the assistant only.");
    WINNOW_ASSIGN_OR_RETURN(normalized["tool_calls"], NormalizeToolCalls(*calls, index));
  } else {
    normalized.erase("tool_calls");  // templates look whether there is such a key
  }
  const auto content = message.find("content");
  if (content == message.end() || content->is_null()) {
    if (name != "assistant") return BadMessage(index, "content", "is missing.");
    // Some templates take null as the sign of a message that only calls tools.
    normalized["content"] = has_calls ? Json() : Json("");
  } else if (content->is_array()) {
    WINNOW_ASSIGN_OR_RETURN(normalized["content"], JoinParts(*content, index));
  } else if (!content->is_string()) {
    return BadMessage(index, "content", "must be a string or a list of text parts.");
  }
  return normalized;
}

// The prompt up to the end of what its last message says: that of transformers' continue_final_message.
absl::Status EndAtFinalMessage(const Json& messages, std::string* prompt) {
  const Json& content = messages.back()["content"];
  const size_t index = messages.size() - 1;
  const std::string_view text = content.is_string() ? content.get_ref<const std::string&>() : std::string_view();
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == text.npos) return BadMessage(index, "content", "must not be empty to be continued.");
  const std::string_view from_begin = text.substr(begin);
  const std::string_view trimmed = from_begin.substr(0, from_begin.find_last_not_of(kSpace) + 1);
  const size_t at = prompt->rfind(trimmed);
  if (at == prompt->npos) {
    return BadMessage(index, "content", "cannot be continued: the chat template does not write it as it is.");
  }
  // Templates that trim messages leave out the space at the end.
  const bool keeps_space = std::string_view(*prompt).substr(at).starts_with(from_begin);
  prompt->resize(at + (keeps_space ? from_begin.size() : trimmed.size()));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Conversation> EncodeConversation(const Json& body, const Json& tools, const ServedModel* bounded_by,
                                                const TextCodec& codec) {
  JsonReader reader(body);
  const bool continue_final = reader.Bool("continue_final_message").value_or(false);
  const bool add_generation_prompt = reader.Bool("add_generation_prompt").value_or(!continue_final);
  const bool add_special_tokens = reader.Bool("add_special_tokens").value_or(false);
  if (continue_final && add_generation_prompt) {
    reader.Fail("continue_final_message", "and \"add_generation_prompt\" exclude each other.");
  }
  WINNOW_RETURN_IF_ERROR(reader.status());
  WINNOW_ASSIGN_OR_RETURN(const Json variables, ReadTemplateVariables(body, tools, codec));

  const Json* messages = reader.Find("messages");
  if (messages == nullptr) return InvalidField("messages", "\"messages\" is missing.", "missing_required_parameter");
  if (!messages->is_array()) return InvalidField("messages", "\"messages\" must be a list.", "invalid_type");
  if (messages->empty()) return InvalidField("messages", "\"messages\" must not be empty.");
  Json normalized = Json::array();
  for (size_t i = 0; i < messages->size(); ++i) {
    WINNOW_ASSIGN_OR_RETURN(Json message, NormalizeMessage((*messages)[i], i));
    normalized.push_back(std::move(message));
  }

  absl::StatusOr<std::string> text = codec.RenderChat(normalized, add_generation_prompt, variables);
  if (!text.ok()) {
    // A model without a template is not the client's fault in particular, but no other request would help either.
    return InvalidField("messages", StdSv(text.status().message()));
  }
  if (continue_final) WINNOW_RETURN_IF_ERROR(EndAtFinalMessage(normalized, &*text));
  Conversation conversation;
  if (bounded_by != nullptr) {
    WINNOW_ASSIGN_OR_RETURN(conversation.token_ids,
                            CheckedPrompt(codec.EncodeAtMost(bounded_by->max_context_tokens, *text, add_special_tokens),
                                          *bounded_by, "messages"));
  } else {
    absl::StatusOr<std::vector<uint32_t>> ids = codec.Encode(*text, add_special_tokens);
    if (!ids.ok()) return InvalidField("messages", StdSv(ids.status().message()));
    conversation.token_ids = *std::move(ids);
  }
  const std::string_view trimmed = std::string_view(*text).substr(0, text->find_last_not_of(kSpace) + 1);
  conversation.ends_in_reasoning = trimmed.ends_with("<think>");
  return conversation;
}

}  // namespace winnow
