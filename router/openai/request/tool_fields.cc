#include "router/openai/request/tool_fields.h"

#include "router/openai/json/api_error.h"
#include "router/openai/json/json_reader.h"

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

enum class Choice { kNone, kAuto, kForced };

struct ToolChoice {
  Choice choice = Choice::kAuto;
  std::string name = {};  // of the function that must be called; empty: any
};

absl::StatusOr<ToolChoice> ReadChoice(const JsonReader& reader) {
  const Json* value = reader.Find("tool_choice");
  if (value == nullptr || *value == "auto") return ToolChoice{};
  if (*value == "none") return ToolChoice{.choice = Choice::kNone};
  if (*value == "required") return ToolChoice{.choice = Choice::kForced};
  if (value->is_object() && value->value("type", Json()) == "function" && value->contains("function") &&
      (*value)["function"].is_object() && (*value)["function"].contains("name") &&
      (*value)["function"]["name"].is_string()) {
    return ToolChoice{.choice = Choice::kForced, .name = (*value)["function"]["name"].get<std::string>()};
  }
  return InvalidField("tool_choice",
                      "\"tool_choice\" must be \"auto\", \"none\", \"required\" or an object "
                      "{\"type\": \"function\", \"function\": {\"name\": ...}}.");
}

CallableFunction FunctionOf(const Json& tool, size_t index) {
  const Json& function = tool["function"];
  return {.name = function["name"].get<std::string>(),
          .parameters = function.value("parameters", Json()),
          .closed = function.value("strict", Json()) == true,
          .path = absl::StrCat("tools[", index, "].function.parameters")};
}

absl::StatusOr<std::vector<CallableFunction>> ForcedFunctions(const Json* tools, const std::string& name) {
  std::vector<CallableFunction> functions;
  for (size_t i = 0; tools != nullptr && i < tools->size(); ++i) {
    CallableFunction function = FunctionOf((*tools)[i], i);
    if (name.empty() || function.name == name) functions.push_back(std::move(function));
  }
  if (!functions.empty()) return functions;
  return InvalidField("tool_choice", name.empty() ? "\"tool_choice\" forces a call, but \"tools\" has no function."
                                                  : absl::StrCat("\"tool_choice\" names the function \"",
                                                                 name.substr(0, 64), "\", which \"tools\" lacks."));
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
  WINNOW_ASSIGN_OR_RETURN(const ToolChoice choice, ReadChoice(reader));
  if (tools != nullptr && !tools->empty() && choice.choice != Choice::kNone) fields.tools = *tools;
  if (choice.choice == Choice::kForced) {
    WINNOW_ASSIGN_OR_RETURN(fields.forced, ForcedFunctions(tools, choice.name));
    // One call of a function that is named: more would all be the same.
    if (!choice.name.empty()) fields.parallel_tool_calls = false;
  }
  return fields;
}

}  // namespace winnow
