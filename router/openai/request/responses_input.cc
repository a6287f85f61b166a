#include "router/openai/request/responses_input.h"

#include <utility>

#include "router/openai/json/api_error.h"
#include "router/openai/json/json_reader.h"

namespace winnow {
namespace {

absl::Status BadInput(std::string_view path, std::string_view problem) {
  return InvalidField(path, absl::StrCat("\"", AbslSv(path), "\" ", AbslSv(problem)));
}

absl::StatusOr<std::string> TextField(const Json& object, const char* field, const std::string& path) {
  const auto value = object.find(field);
  if (value != object.end() && value->is_string()) return value->get<std::string>();
  return BadInput(absl::StrCat(path, ".", field), "must be a string.");
}

// The text of a string or of a list of parts.
absl::StatusOr<std::string> TextOf(const Json& content, const std::string& path) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) return BadInput(path, "must be a string or a list of text parts.");
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string part_path = absl::StrCat(path, "[", i, "]");
    const Json& part = content[i];
    if (!part.is_object()) return BadInput(part_path, "must be an object.");
    WINNOW_ASSIGN_OR_RETURN(const std::string type, TextField(part, "type", part_path));
    const bool is_text = type == "input_text" || type == "output_text" || type == "text" || type == "reasoning_text" ||
                         type == "refusal";
    if (!is_text) return BadInput(part_path + ".type", "must be that of a text: this server reads text only.");
    WINNOW_ASSIGN_OR_RETURN(const std::string piece,
                            TextField(part, type == "refusal" ? "refusal" : "text", part_path));
    if (i > 0) text += '\n';
    text += piece;
  }
  return text;
}

class Reader {
 public:
  absl::StatusOr<ResponsesMessages> Read(const Json& body) {
    JsonReader reader(body);
    if (const auto instructions = reader.String("instructions")) {
      Add({{"role", "system"}, {"content", *instructions}}, "instructions");
    }
    WINNOW_RETURN_IF_ERROR(reader.status());
    const Json* input = reader.Find("input");
    if (input == nullptr) return InvalidField("input", "\"input\" is missing.", "missing_required_parameter");
    if (input->is_string()) {
      Add({{"role", "user"}, {"content", *input}}, "input");
      return std::move(result_);
    }
    if (!input->is_array()) {
      return InvalidField("input", "\"input\" must be a string or a list of items.", "invalid_type");
    }
    if (input->empty()) return BadInput("input", "must not be empty.");
    for (size_t i = 0; i < input->size(); ++i) {
      WINNOW_RETURN_IF_ERROR(ReadItem((*input)[i], absl::StrCat("input[", i, "]")));
    }
    return std::move(result_);
  }

 private:
  absl::Status ReadItem(const Json& item, const std::string& path) {
    if (!item.is_object()) return BadInput(path, "must be an object.");
    std::string type = "message";
    if (item.contains("type")) {
      WINNOW_ASSIGN_OR_RETURN(type, TextField(item, "type", path));
    }
    if (type == "message") return ReadMessage(item, path);
    if (type == "function_call") return ReadCall(item, path);
    if (type == "function_call_output") return ReadOutput(item, path);
    if (type == "reasoning") return ReadReasoning(item, path);
    if (type == "item_reference") {
      return BadInput(path,
                      "refers to an item of an earlier response, and this server keeps none: send the item itself.");
    }
    return BadInput(
        path + ".type",
        "must be message, function_call, function_call_output or reasoning: this server knows no other items.");
  }

  absl::Status ReadMessage(const Json& item, const std::string& path) {
    WINNOW_ASSIGN_OR_RETURN(const std::string role, TextField(item, "role", path));
    if (!item.contains("content")) return BadInput(path + ".content", "is missing.");
    WINNOW_ASSIGN_OR_RETURN(std::string text, TextOf(item["content"], path + ".content"));
    if (role != "assistant") {
      Add({{"role", role}, {"content", std::move(text)}}, path);
      return absl::OkStatus();
    }
    Json& message = Assistant("content", path);
    message["content"] = std::move(text);
    return absl::OkStatus();
  }

  absl::Status ReadCall(const Json& item, const std::string& path) {
    WINNOW_ASSIGN_OR_RETURN(const std::string id, TextField(item, "call_id", path));
    WINNOW_ASSIGN_OR_RETURN(const std::string name, TextField(item, "name", path));
    WINNOW_ASSIGN_OR_RETURN(const std::string arguments, TextField(item, "arguments", path));
    Json call = {{"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", arguments}}}};
    Json& message = Assistant("", path);
    message["tool_calls"].push_back(std::move(call));
    return absl::OkStatus();
  }

  absl::Status ReadOutput(const Json& item, const std::string& path) {
    WINNOW_ASSIGN_OR_RETURN(const std::string id, TextField(item, "call_id", path));
    if (!item.contains("output")) return BadInput(path + ".output", "is missing.");
    WINNOW_ASSIGN_OR_RETURN(std::string text, TextOf(item["output"], path + ".output"));
    Add({{"role", "tool"}, {"tool_call_id", id}, {"content", std::move(text)}}, path);
    return absl::OkStatus();
  }

  absl::Status ReadReasoning(const Json& item, const std::string& path) {
    if (!item.contains("content") || item["content"].is_null()) return absl::OkStatus();
    WINNOW_ASSIGN_OR_RETURN(std::string text, TextOf(item["content"], path + ".content"));
    Json& message = Assistant("reasoning_content", path);
    message["reasoning_content"] = std::move(text);
    return absl::OkStatus();
  }

  void Add(Json message, const std::string& origin) {
    result_.messages.push_back(std::move(message));
    result_.origins.push_back(origin);
  }

  // The message that what the assistant did next belongs to: the last one, unless it says `field` already or ended by
  // calling tools.
  Json& Assistant(const char* field, const std::string& path) {
    Json& messages = result_.messages;
    const bool goes_on =
        !messages.empty() && messages.back()["role"] == "assistant" &&
        (*field == '\0' || (!messages.back().contains(field) && !messages.back().contains("tool_calls")));
    if (!goes_on) Add({{"role", "assistant"}}, path);
    return messages.back();
  }

  ResponsesMessages result_;
};

}  // namespace

absl::StatusOr<ResponsesMessages> ReadResponsesInput(const Json& body) {
  return Reader().Read(body);
}

}  // namespace winnow
