#include "router/openai/tool_fields.h"

#include "router/openai/api_error.h"
#include "router/openai/json_reader.h"

namespace winnow {
namespace {

absl::Status BadTool(size_t index, std::string_view field, std::string_view problem) {
  const std::string path = absl::StrCat("tools[", index, "]", field.empty() ? "" : ".", AbslSv(field));
  return InvalidField(path, absl::StrCat("\"", path, "\" ", AbslSv(problem)));
}

absl::Status CheckTool(const Json& tool, size_t index) {
  if (!tool.is_object()) return BadTool(index, "", "must be an object.");
  const auto type = tool.find("type");
  if (type == tool.end() || *type != "function") {
    return BadTool(index, "type", "must be \"function\": this server knows no other tools.");
  }
  const auto function = tool.find("function");
  if (function == tool.end() || !function->is_object()) return BadTool(index, "function", "must be an object.");
  const auto name = function->find("name");
  if (name == function->end() || !name->is_string() || name->get_ref<const std::string&>().empty()) {
    return BadTool(index, "function.name", "must be a string that is not empty.");
  }
  const auto parameters = function->find("parameters");
  if (parameters != function->end() && !parameters->is_null() && !parameters->is_object()) {
    return BadTool(index, "function.parameters", "must be an object, a JSON schema.");
  }
  return absl::OkStatus();
}

enum class Choice { kNone, kAuto };

absl::StatusOr<Choice> ReadChoice(const JsonReader& reader) {
  const Json* value = reader.Find("tool_choice");
  if (value == nullptr || *value == "auto") return Choice::kAuto;
  if (*value == "none") return Choice::kNone;
  if (*value == "required" || value->is_object()) {
    return InvalidField(
        "tool_choice",
        "\"tool_choice\" may be \"auto\" or \"none\": to force a call, or the call of a named function, "
        "needs constrained decoding, which this server does not do.",
        "unsupported_parameter");
  }
  return InvalidField("tool_choice", "\"tool_choice\" must be \"auto\" or \"none\".");
}

}  // namespace

absl::StatusOr<ToolFields> ReadToolFields(const Json& body) {
  JsonReader reader(body);
  ToolFields fields;
  fields.parallel_tool_calls = reader.Bool("parallel_tool_calls").value_or(true);
  WINNOW_RETURN_IF_ERROR(reader.status());
  const Json* tools = reader.Find("tools");
  if (tools != nullptr && !tools->is_array()) {
    return InvalidField("tools", "\"tools\" must be a list.", "invalid_type");
  }
  for (size_t i = 0; tools != nullptr && i < tools->size(); ++i) WINNOW_RETURN_IF_ERROR(CheckTool((*tools)[i], i));
  WINNOW_ASSIGN_OR_RETURN(const Choice choice, ReadChoice(reader));
  if (tools != nullptr && !tools->empty() && choice == Choice::kAuto) fields.tools = *tools;
  return fields;
}

}  // namespace winnow
