#include "router/openai/chat_messages.h"

#include <algorithm>
#include <array>

#include "router/openai/api_error.h"
#include "router/openai/generation_request.h"
#include "router/openai/json_reader.h"

namespace winnow {
namespace {

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
    if (*type != "text") return BadMessage(index, field + ".type", "must be \"text\": this server reads text only.");
    const auto value = part.find("text");
    if (value == part.end() || !value->is_string()) return BadMessage(index, field + ".text", "must be a string.");
    if (i > 0) text += '\n';
    text += value->get_ref<const std::string&>();
  }
  return text;
}

// The message with its content as one string.
absl::StatusOr<Json> NormalizeMessage(const Json& message, size_t index) {
  if (!message.is_object()) return BadMessage(index, "", "must be an object.");
  const auto role = message.find("role");
  if (role == message.end() || !role->is_string()) return BadMessage(index, "role", "must be a string.");
  const std::string& name = role->get_ref<const std::string&>();
  if (std::find(kRoles.begin(), kRoles.end(), name) == kRoles.end()) {
    return BadMessage(index, "role", "must be one of system, developer, user, assistant, tool, function.");
  }
  Json normalized = message;
  const auto content = message.find("content");
  if (content == message.end() || content->is_null()) {
    if (name != "assistant") return BadMessage(index, "content", "is missing.");
    normalized["content"] = "";
  } else if (content->is_array()) {
    WINNOW_ASSIGN_OR_RETURN(normalized["content"], JoinParts(*content, index));
  } else if (!content->is_string()) {
    return BadMessage(index, "content", "must be a string or a list of text parts.");
  }
  return normalized;
}

}  // namespace

absl::StatusOr<std::vector<uint32_t>> EncodeConversation(const Json& body, const ServedModel* bounded_by,
                                                         const TextCodec& codec) {
  JsonReader reader(body);
  const bool add_generation_prompt = reader.Bool("add_generation_prompt").value_or(true);
  const bool add_special_tokens = reader.Bool("add_special_tokens").value_or(false);
  WINNOW_RETURN_IF_ERROR(reader.status());
  Json variables = Json::object();
  if (const Json* given = reader.Find("chat_template_kwargs")) {
    if (!given->is_object()) {
      return InvalidField("chat_template_kwargs", "\"chat_template_kwargs\" must be an object.", "invalid_type");
    }
    variables = *given;
  }

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
  if (bounded_by != nullptr) {
    return CheckedPrompt(codec.EncodeAtMost(bounded_by->max_context_tokens, *text, add_special_tokens), *bounded_by,
                         "messages");
  }
  absl::StatusOr<std::vector<uint32_t>> ids = codec.Encode(*text, add_special_tokens);
  if (!ids.ok()) return InvalidField("messages", StdSv(ids.status().message()));
  return ids;
}

}  // namespace winnow
