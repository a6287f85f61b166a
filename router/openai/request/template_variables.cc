#include "router/openai/request/template_variables.h"

#include <algorithm>
#include <array>

#include "router/openai/json/api_error.h"
#include "router/openai/json/json_reader.h"

namespace winnow {
namespace {

constexpr std::array<std::string_view, 7> kEfforts = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};

absl::Status NotRead(const char* field) {
  return InvalidField(
      field, absl::StrCat("\"", field, "\" would have no effect: this model's chat template does not read it."),
      "unsupported_parameter");
}

}  // namespace

absl::StatusOr<Json> ReadTemplateVariables(const Json& body, const Json& tools, const TextCodec& codec) {
  JsonReader reader(body);
  Json variables = Json::object();
  if (const Json* given = reader.Find("chat_template_kwargs")) {
    if (!given->is_object()) {
      return InvalidField("chat_template_kwargs", "\"chat_template_kwargs\" must be an object.", "invalid_type");
    }
    variables = *given;
  }
  const auto set = [&](const char* name, Json value) {
    if (!variables.contains(name)) variables[name] = std::move(value);
  };

  if (!tools.is_null()) {
    if (!codec.TemplateReads("tools")) {
      return InvalidField("tools",
                          "\"tools\" would have no effect: this model's chat template does not show them to it.",
                          "unsupported_parameter");
    }
    set("tools", tools);
  }
  if (const Json* documents = reader.Find("documents")) {
    if (!documents->is_array()) return InvalidField("documents", "\"documents\" must be a list.", "invalid_type");
    if (!documents->empty()) {
      if (!codec.TemplateReads("documents")) return NotRead("documents");
      set("documents", *documents);
    }
  }
  if (const auto thinks = reader.Bool("enable_thinking")) {
    if (!codec.TemplateReads("enable_thinking")) return NotRead("enable_thinking");
    set("enable_thinking", *thinks);
  }
  if (const auto effort = reader.String("reasoning_effort")) {
    if (std::find(kEfforts.begin(), kEfforts.end(), *effort) == kEfforts.end()) {
      return InvalidField("reasoning_effort",
                          "\"reasoning_effort\" must be none, minimal, low, medium, high, xhigh or max.");
    }
    if (codec.TemplateReads("reasoning_effort")) {
      set("reasoning_effort", *effort);
    } else if (codec.TemplateReads("enable_thinking")) {
      set("enable_thinking", *effort != "none");
    } else {
      return NotRead("reasoning_effort");
    }
  }
  WINNOW_RETURN_IF_ERROR(reader.status());
  return variables;
}

}  // namespace winnow
