#include "router/openai/request/constraint_fields.h"

#include <utility>

#include "router/openai/json/api_error.h"
#include "router/openai/json/json_reader.h"
#include "router/openai/request/request_fields.h"

namespace winnow {
namespace {

absl::Status BadConstraint(std::string_view field, std::string_view problem) {
  return InvalidField(field, absl::StrCat("\"", AbslSv(field), "\" ", AbslSv(problem)));
}

// A schema, or the text of one, which clients send as well.
absl::StatusOr<std::string> SchemaText(const Json& schema, std::string_view field) {
  if (schema.is_string()) return schema.get<std::string>();
  if (!schema.is_object() && !schema.is_boolean()) return BadConstraint(field, "must be a JSON schema.");
  return schema.dump();
}

absl::StatusOr<std::string> Text(const Json& value, std::string_view field) {
  if (!value.is_string()) return BadConstraint(field, "must be a string.");
  return value.get<std::string>();
}

absl::Status ReadChoices(const Json& choices, std::string_view field, v1::StructuredOutput* output) {
  if (!choices.is_array() || choices.empty())
    return BadConstraint(field, "must be a list of strings that is not empty.");
  for (const Json& choice : choices) {
    if (!choice.is_string()) return BadConstraint(field, "must be a list of strings.");
    output->mutable_choices()->add_texts(choice.get<std::string>());
  }
  return absl::OkStatus();
}

// One of the things that vLLM's fields ask for.
absl::Status ReadKind(std::string_view kind, const Json& value, std::string_view field, v1::StructuredOutput* output) {
  if (kind == "choice") return ReadChoices(value, field, output);
  if (kind == "json") {
    WINNOW_ASSIGN_OR_RETURN(*output->mutable_json_schema(), SchemaText(value, field));
  } else if (kind == "regex") {
    WINNOW_ASSIGN_OR_RETURN(*output->mutable_regex(), Text(value, field));
  } else {
    WINNOW_ASSIGN_OR_RETURN(*output->mutable_grammar(), Text(value, field));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<v1::StructuredOutput>> ReadResponseFormat(const Json& format) {
  if (!format.is_object()) return BadConstraint("response_format", "must be an object.");
  JsonReader reader(format, "response_format.");
  const std::string type = reader.String("type").value_or("");
  WINNOW_RETURN_IF_ERROR(reader.status());
  v1::StructuredOutput output;
  if (type == "text") return std::optional<v1::StructuredOutput>();
  if (type == "json_object") {
    output.set_json_object(true);
    return output;
  }
  if (type != "json_schema") {
    return InvalidField("response_format.type",
                        "\"response_format.type\" must be \"text\", \"json_object\" or \"json_schema\".");
  }
  WINNOW_RETURN_IF_ERROR(CheckKeys(format, "response_format.", {"type", "json_schema"}));
  const Json* const wrapper = reader.Find("json_schema");
  if (wrapper == nullptr || !wrapper->is_object())
    return BadConstraint("response_format.json_schema", "must be an object.");
  constexpr char kPath[] = "response_format.json_schema.";
  WINNOW_RETURN_IF_ERROR(CheckKeys(*wrapper, kPath, {"name", "description", "schema", "strict"}));
  JsonReader fields(*wrapper, kPath);
  fields.String("name");
  output.set_closed(fields.Bool("strict").value_or(false));
  WINNOW_RETURN_IF_ERROR(fields.status());
  const Json* const schema = fields.Find("schema");
  if (schema == nullptr) return BadConstraint("response_format.json_schema.schema", "is missing.");
  WINNOW_ASSIGN_OR_RETURN(*output.mutable_json_schema(), SchemaText(*schema, "response_format.json_schema.schema"));
  return output;
}

absl::StatusOr<std::optional<v1::StructuredOutput>> ReadStructuredOutputs(const Json& fields) {
  constexpr std::string_view kPath = "structured_outputs.";
  if (!fields.is_object()) return BadConstraint("structured_outputs", "must be an object.");
  WINNOW_RETURN_IF_ERROR(
      CheckKeys(fields, kPath,
                {"json", "regex", "choice", "grammar", "json_object", "disable_any_whitespace",
                 "disable_additional_properties", "disable_fallback", "structural_tag", "whitespace_pattern"}));
  JsonReader reader(fields, std::string(kPath));
  for (const char* refused : {"structural_tag", "whitespace_pattern"}) {
    if (reader.Find(refused) == nullptr) continue;
    return InvalidField(absl::StrCat(AbslSv(kPath), refused),
                        absl::StrCat("\"structured_outputs.", refused, "\" is not supported by this server."),
                        "unsupported_parameter");
  }
  v1::StructuredOutput output;
  int kinds = 0;
  for (const char* kind : {"json", "regex", "choice", "grammar"}) {
    const Json* const value = reader.Find(kind);
    if (value == nullptr) continue;
    ++kinds;
    WINNOW_RETURN_IF_ERROR(ReadKind(kind, *value, absl::StrCat(AbslSv(kPath), kind), &output));
  }
  if (reader.Bool("json_object").value_or(false)) {
    ++kinds;
    output.set_json_object(true);
  }
  output.set_compact(reader.Bool("disable_any_whitespace").value_or(false));
  output.set_closed(reader.Bool("disable_additional_properties").value_or(false));
  WINNOW_RETURN_IF_ERROR(reader.status());
  if (kinds != 1) {
    return BadConstraint("structured_outputs",
                         "must have exactly one of json, regex, choice, grammar and json_object.");
  }
  return output;
}

}  // namespace

absl::StatusOr<std::optional<ConstraintFields>> ReadConstraintFields(const Json& body) {
  JsonReader reader(body);
  std::optional<ConstraintFields> found;
  const auto take = [&](const std::string& field, std::optional<v1::StructuredOutput> output) -> absl::Status {
    if (!output.has_value()) return absl::OkStatus();
    if (found.has_value()) {
      return BadConstraint(
          field, absl::StrCat("and \"", found->field, "\" exclude each other: both say what an answer must be."));
    }
    found = ConstraintFields{.field = field, .output = *std::move(output)};
    return absl::OkStatus();
  };
  if (const Json* const format = reader.Find("response_format"); format != nullptr) {
    WINNOW_ASSIGN_OR_RETURN(std::optional<v1::StructuredOutput> output, ReadResponseFormat(*format));
    WINNOW_RETURN_IF_ERROR(take("response_format", std::move(output)));
  }
  if (const Json* const fields = reader.Find("structured_outputs"); fields != nullptr) {
    WINNOW_ASSIGN_OR_RETURN(std::optional<v1::StructuredOutput> output, ReadStructuredOutputs(*fields));
    WINNOW_RETURN_IF_ERROR(take("structured_outputs", std::move(output)));
  }
  for (const char* kind : {"json", "regex", "choice", "grammar"}) {
    const std::string field = absl::StrCat("guided_", kind);
    const Json* const value = reader.Find(field.c_str());
    if (value == nullptr) continue;
    v1::StructuredOutput output;
    WINNOW_RETURN_IF_ERROR(ReadKind(kind, *value, field, &output));
    WINNOW_RETURN_IF_ERROR(take(field, std::move(output)));
  }
  return found;
}

}  // namespace winnow
