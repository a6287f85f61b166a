#include "router/openai/request/selection_fields.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_join.h"
#include "common/selection/spec_json.h"
#include "router/generation/request_checks.h"
#include "router/generation/selection_rules.h"
#include "router/openai/json/api_error.h"
#include "router/openai/json/json_reader.h"

namespace winnow {
namespace {

constexpr std::array kKeys = {"selection", "budget",          "min_captured_mass", "priority",
                              "trace",     "prompt_progress", "resumable"};

bool IsGiven(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && !it->is_null();
}

absl::Status RefuseUnknownKeys(const Json& object) {
  for (const auto& [key, value] : object.items()) {
    if (std::find(kKeys.begin(), kKeys.end(), key) != kKeys.end()) continue;
    const std::string path = absl::StrCat("winnow.", key.substr(0, 64));
    return InvalidField(path, absl::StrCat("\"", path, "\" is not known; there are: ", absl::StrJoin(kKeys, ", "), "."),
                        "unknown_parameter");
  }
  return absl::OkStatus();
}

absl::StatusOr<SpecChanges> ReadChanges(const Json& object) {
  SpecChanges changes;
  if (IsGiven(object, "selection")) {
    const Json& selection = object["selection"];
    if (selection.is_string()) {
      WINNOW_ASSIGN_OR_RETURN(changes, ParseSpecChanges(selection.get_ref<const std::string&>()));
    } else if (selection.is_object()) {
      WINNOW_ASSIGN_OR_RETURN(changes, SpecChangesFromJson(selection));
    } else {
      return SpecError("", absl::StrCat("must be a string or an object, not ", selection.type_name()));
    }
  }
  // As if they stood in the object, last.
  Json shorthands = Json::object();
  for (const char* key : {"budget", "min_captured_mass"}) {
    if (IsGiven(object, key)) shorthands[key] = object[key];
  }
  WINNOW_ASSIGN_OR_RETURN(const SpecChanges more, SpecChangesFromJson(shorthands));
  changes.fields.insert(changes.fields.end(), more.fields.begin(), more.fields.end());
  return changes;
}

// Where in the request an error is.
std::string PathOf(const std::string& field, const Json& object) {
  if ((field == "budget" || field == "min_captured_mass") && IsGiven(object, field.c_str())) return "winnow." + field;
  if (!IsGiven(object, "selection")) return "winnow";
  if (object["selection"].is_object() && !field.empty()) return "winnow.selection." + field;
  return "winnow.selection";
}

absl::Status Explain(const absl::Status& status, const Json& object) {
  const std::string path = PathOf(SpecErrorField(status), object);
  return InvalidField(path, absl::StrCat("\"", path, "\": ", status.message(), "."),
                      absl::IsUnimplemented(status) ? "unsupported_parameter" : "invalid_value");
}

}  // namespace

absl::StatusOr<SelectionSpec> ParseSelectionFields(const Json& body, const ServedModel& model) {
  const auto it = body.find("winnow");
  if (it == body.end() || it->is_null()) return model.default_selection;
  const Json& object = *it;
  if (!object.is_object()) {
    return InvalidField("winnow", absl::StrCat("\"winnow\" must be an object, not ", object.type_name(), "."),
                        "invalid_type");
  }
  WINNOW_RETURN_IF_ERROR(RefuseUnknownKeys(object));
  const absl::StatusOr<SpecChanges> changes = ReadChanges(object);
  if (!changes.ok()) return Explain(changes.status(), object);
  absl::StatusOr<SelectionSpec> spec = ResolveSelection(*changes, model);
  if (!spec.ok()) return Explain(spec.status(), object);
  return spec;
}

absl::StatusOr<int32_t> ParsePriority(const Json& body) {
  const auto it = body.find("winnow");
  if (it == body.end() || it->is_null() || !IsGiven(*it, "priority")) return 0;
  const Json& value = (*it)["priority"];
  if (!value.is_number_integer()) {
    return InvalidField("winnow.priority", "\"winnow.priority\" must be an integer.", "invalid_type");
  }
  const int64_t priority = value.is_number_unsigned() && value.get<uint64_t>() > RequestLimits::kPriority
                               ? RequestLimits::kPriority + 1
                               : value.get<int64_t>();
  if (priority < -RequestLimits::kPriority || priority > RequestLimits::kPriority) {
    return InvalidField("winnow.priority", absl::StrCat("\"winnow.priority\" must be from ", -RequestLimits::kPriority,
                                                        " to ", RequestLimits::kPriority, "."));
  }
  return static_cast<int32_t>(priority);
}

absl::StatusOr<uint32_t> ParseTraceParts(const Json& body) {
  const auto it = body.find("winnow");
  if (it == body.end() || it->is_null() || !IsGiven(*it, "trace")) return 0;
  JsonReader reader(*it, "winnow.");
  const std::optional<int64_t> parts =
      reader.Int("trace", RequestLimits::kFewestTraceParts, RequestLimits::kMostTraceParts);
  WINNOW_RETURN_IF_ERROR(reader.status());
  return static_cast<uint32_t>(*parts);
}

absl::StatusOr<bool> ParseWinnowFlag(const Json& body, const char* key) {
  const auto it = body.find("winnow");
  if (it == body.end() || it->is_null()) return false;
  JsonReader reader(*it, "winnow.");
  const bool wanted = reader.Bool(key).value_or(false);
  WINNOW_RETURN_IF_ERROR(reader.status());
  return wanted;
}

}  // namespace winnow
