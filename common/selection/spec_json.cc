#include "common/selection/spec_json.h"

#include <charconv>
#include <cmath>

#include "common/base/json.h"

namespace winnow {
namespace {

using Json = nlohmann::ordered_json;

// The text of a JSON number as fields read it: whole numbers without a point, others as short as a float allows.
std::string NumberText(const Json& value) {
  if (value.is_number_integer()) return value.dump();
  const double number = value.get<double>();
  constexpr double kExact = 9007199254740992.0;  // 2^53
  if (number == std::floor(number) && std::abs(number) < kExact) return absl::StrCat(static_cast<int64_t>(number));
  char text[64];
  const auto result = std::to_chars(text, text + sizeof text, static_cast<float>(number));
  return std::string(text, result.ptr);
}

// What a field wants to see in JSON; empty when `value` is that.
std::string WrongType(const SelectionField& field, const Json& value) {
  if (std::holds_alternative<IntegerValue>(field.value)) {
    const bool unlimited = std::get<IntegerValue>(field.value).may_be_unlimited && value.is_string();
    return value.is_number() || unlimited ? "" : "a number";
  }
  if (std::holds_alternative<NumberValue>(field.value)) return value.is_number() ? "" : "a number";
  if (std::holds_alternative<BoolValue>(field.value)) return value.is_boolean() ? "" : "true or false";
  return value.is_string() ? "" : "a string";
}

}  // namespace

absl::StatusOr<SpecChanges> SpecChangesFromJson(const Json& object) {
  if (!object.is_object()) return SpecError("", absl::StrCat("must be an object, not ", object.type_name()));
  SpecChanges changes;
  for (const auto& [name, value] : object.items()) {
    if (name == "preset") {
      if (value.is_null()) continue;
      if (!value.is_string()) return SpecError(name, absl::StrCat("must be a string, not ", value.type_name()));
      changes.preset = value.get<std::string>();
      continue;
    }
    WINNOW_ASSIGN_OR_RETURN(const SelectionField* field, FindField(name));
    if (value.is_null()) continue;
    if (const std::string wanted = WrongType(*field, value); !wanted.empty()) {
      return SpecError(field->name, absl::StrCat("must be ", wanted, ", not ", value.type_name()));
    }
    std::string text = value.is_string()    ? value.get<std::string>()
                       : value.is_boolean() ? std::string(value.get<bool>() ? "true" : "false")
                                            : NumberText(value);
    changes.fields.push_back({field, std::move(text)});
  }
  return changes;
}

Json FullSpecJson(const SelectionSpec& spec) {
  Json object = {{"preset", spec.preset}};
  for (const SelectionField& field : SelectionFields()) {
    const std::string text = field.Print(spec);
    if (std::holds_alternative<BoolValue>(field.value)) {
      object[std::string(field.name)] = text == "true";
    } else if (double number = 0; std::from_chars(text.data(), text.data() + text.size(), number).ec == std::errc()) {
      // From its text: a float's own digits would show as 0.05000000074.
      if (std::holds_alternative<IntegerValue>(field.value)) {
        object[std::string(field.name)] = static_cast<uint64_t>(number);
      } else {
        object[std::string(field.name)] = number;
      }
    } else {
      object[std::string(field.name)] = text;
    }
  }
  return object;
}

}  // namespace winnow
