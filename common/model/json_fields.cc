#include "common/model/json_fields.h"

#include <cmath>

#include "absl/strings/escaping.h"
#include "common/base/status.h"

namespace winnow {

using nlohmann::json;

absl::StatusOr<json> ParseJsonObject(std::string_view text, std::string_view file) {
  const auto error = [file](auto... parts) {
    return absl::InvalidArgumentError(absl::StrCat(AbslSv(file), ": ", parts...));
  };
  bool too_deep = false;
  try {
    json root = json::parse(text.begin(), text.end(), [&too_deep](int depth, json::parse_event_t, json&) {
      too_deep = too_deep || depth > kMaxJsonDepth;
      return !too_deep;
    });
    if (too_deep) return error("JSON nested deeper than ", kMaxJsonDepth);
    if (!root.is_object()) return error("must be a JSON object");
    return root;
  } catch (const json::exception& e) {
    // what() quotes the last token, which may be as long as the file.
    return error("malformed JSON: ", absl::CHexEscape(absl::string_view(e.what()).substr(0, 200)));
  }
}

const json* JsonFields::FindValue(const char* field) const {
  const auto it = object_.find(field);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

JsonFields JsonFields::Nested(const json& object, std::string_view name) const {
  return JsonFields(object, file_, absl::StrCat(prefix_, AbslSv(name), "."));
}

bool JsonFields::Has(const char* field) const {
  return FindValue(field) != nullptr;
}

bool JsonFields::IsNull(const char* field) const {
  const auto it = object_.find(field);
  return it != object_.end() && it->is_null();
}

absl::Status JsonFields::Error(std::string_view field, std::string_view message) const {
  return absl::InvalidArgumentError(absl::StrCat(file_, ": ", prefix_, AbslSv(field), " ", AbslSv(message)));
}

absl::StatusOr<std::optional<int64_t>> JsonFields::Int(const char* field, int64_t low, int64_t high) const {
  const json* value = FindValue(field);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number_integer()) return Error(field, absl::StrCat("must be an integer, not ", value->type_name()));
  const bool too_large =
      value->is_number_unsigned() && value->get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()};
  const int64_t number = too_large ? std::numeric_limits<int64_t>::max() : value->get<int64_t>();
  if (number < low || number > high) {
    return Error(field, absl::StrCat("is ", number, ", outside the supported range ", low, " to ", high));
  }
  return number;
}

absl::StatusOr<std::optional<double>> JsonFields::Number(const char* field) const {
  const json* value = FindValue(field);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) return Error(field, absl::StrCat("must be a number, not ", value->type_name()));
  const double number = value->get<double>();
  if (!std::isfinite(number)) return Error(field, "must be finite");
  return number;
}

absl::StatusOr<std::optional<bool>> JsonFields::Bool(const char* field) const {
  const json* value = FindValue(field);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) return Error(field, absl::StrCat("must be true or false, not ", value->type_name()));
  return value->get<bool>();
}

absl::StatusOr<std::optional<std::string>> JsonFields::String(const char* field) const {
  const json* value = FindValue(field);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) return Error(field, absl::StrCat("must be a string, not ", value->type_name()));
  return value->get<std::string>();
}

absl::StatusOr<const json*> JsonFields::Object(const char* field) const {
  const json* value = FindValue(field);
  if (value != nullptr && !value->is_object())
    return Error(field, absl::StrCat("must be an object, not ", value->type_name()));
  return value;
}

absl::StatusOr<const json*> JsonFields::Array(const char* field) const {
  const json* value = FindValue(field);
  if (value != nullptr && !value->is_array())
    return Error(field, absl::StrCat("must be an array, not ", value->type_name()));
  return value;
}

}  // namespace winnow
