#include "common/json_schema/schema_keywords.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace winnow {
namespace {

constexpr uint32_t kMaxCount = 100'000;
constexpr size_t kMaxMembers = 2'000;  // of one keyword: what compares them takes the square of their number

// How the value of a keyword must look.
enum class Form { kAny, kSchema, kSchemas, kSchemaList, kString, kStrings, kNumber, kCount, kList, kBool };

struct Keyword {
  std::string_view name;
  Form form = Form::kAny;
  unsigned types = 0;  // that it is about; 0: all, or none in particular
  bool is_assertion = true;
};

constexpr std::array kKeywords = {
    Keyword{"$ref", Form::kString},
    Keyword{"type", Form::kAny},
    Keyword{"enum", Form::kList},
    Keyword{"const", Form::kAny},
    Keyword{"anyOf", Form::kSchemaList},
    Keyword{"oneOf", Form::kSchemaList},
    Keyword{"allOf", Form::kSchemaList},
    Keyword{"properties", Form::kSchemas, kObjectType},
    Keyword{"required", Form::kStrings, kObjectType},
    Keyword{"additionalProperties", Form::kSchema, kObjectType},
    Keyword{"items", Form::kSchema, kArrayType},
    Keyword{"prefixItems", Form::kSchemaList, kArrayType},
    Keyword{"minItems", Form::kCount, kArrayType},
    Keyword{"maxItems", Form::kCount, kArrayType},
    Keyword{"uniqueItems", Form::kBool, kArrayType},
    Keyword{"minLength", Form::kCount, kStringType},
    Keyword{"maxLength", Form::kCount, kStringType},
    Keyword{"pattern", Form::kString, kStringType},
    Keyword{"format", Form::kString, kStringType},
    Keyword{"minimum", Form::kNumber, kNumberType},
    Keyword{"maximum", Form::kNumber, kNumberType},
    Keyword{"exclusiveMinimum", Form::kNumber, kNumberType},
    Keyword{"exclusiveMaximum", Form::kNumber, kNumberType},
    Keyword{"$defs", Form::kSchemas, 0, false},
    Keyword{"definitions", Form::kSchemas, 0, false},
    Keyword{"$schema", Form::kAny, 0, false},
    Keyword{"$id", Form::kAny, 0, false},
    Keyword{"$comment", Form::kAny, 0, false},
    Keyword{"title", Form::kAny, 0, false},
    Keyword{"description", Form::kAny, 0, false},
    Keyword{"default", Form::kAny, 0, false},
    Keyword{"examples", Form::kAny, 0, false},
    Keyword{"example", Form::kAny, 0, false},
    Keyword{"deprecated", Form::kAny, 0, false},
    Keyword{"readOnly", Form::kAny, 0, false},
    Keyword{"writeOnly", Form::kAny, 0, false},
    Keyword{"contentEncoding", Form::kAny, 0, false},
    Keyword{"contentMediaType", Form::kAny, 0, false},
    Keyword{"discriminator", Form::kAny, 0, false},
};

const Keyword* FindKeyword(std::string_view name) {
  const auto found = std::find_if(kKeywords.begin(), kKeywords.end(), [&](const Keyword& k) { return k.name == name; });
  return found == kKeywords.end() ? nullptr : &*found;
}

bool IsSchema(const SchemaJson& value) {
  return value.is_object() || value.is_boolean();
}

// What the value of a keyword must be; empty when it is.
std::string_view MissingForm(const SchemaJson& value, Form form) {
  const auto all = [&](auto is) { return std::all_of(value.begin(), value.end(), is); };
  switch (form) {
    case Form::kAny:
      return "";
    case Form::kSchema:
      return IsSchema(value) ? "" : "a schema";
    case Form::kSchemas:
      return value.is_object() && all(IsSchema) ? "" : "an object of schemas";
    case Form::kSchemaList:
      return value.is_array() && !value.empty() && all(IsSchema) ? "" : "a list of schemas that is not empty";
    case Form::kString:
      return value.is_string() ? "" : "a string";
    case Form::kStrings:
      return value.is_array() && all([](const SchemaJson& v) { return v.is_string(); }) ? "" : "a list of strings";
    case Form::kNumber:
      return value.is_number() ? "" : "a number";
    case Form::kCount: {
      const bool fits = value.is_number() && value.get<double>() >= 0 && value.get<double>() <= kMaxCount &&
                        std::floor(value.get<double>()) == value.get<double>();
      return fits ? "" : "a whole number from 0 to 100000";
    }
    case Form::kList:
      return value.is_array() && !value.empty() ? "" : "a list that is not empty";
    case Form::kBool:
      return value.is_boolean() ? "" : "true or false";
  }
  return "";
}

absl::StatusOr<unsigned> TypeNamed(const SchemaJson& name, std::string_view path) {
  static const std::array<std::pair<std::string_view, unsigned>, 7> kNames = {{{"null", kNullType},
                                                                               {"boolean", kBooleanType},
                                                                               {"integer", kIntegerType},
                                                                               {"number", kNumberType},
                                                                               {"string", kStringType},
                                                                               {"array", kArrayType},
                                                                               {"object", kObjectType}}};
  for (const auto& [known, type] : kNames) {
    if (name.is_string() && name.get_ref<const std::string&>() == known) return type;
  }
  return SchemaError(path, absl::StrCat("type ", name.dump().substr(0, 64), " is not one of JSON's"));
}

}  // namespace

std::string SchemaPath(std::string_view path, std::string_view member) {
  std::string whole(path);
  whole += '/';
  for (const char c : member.substr(0, 64)) {
    if (c == '~') {
      whole += "~0";
    } else if (c == '/') {
      whole += "~1";
    } else {
      whole += c;
    }
  }
  return whole;
}

absl::Status SchemaError(std::string_view path, std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(AbslSv(what), " at ", AbslSv(path)));
}

const SchemaJson* FindMember(const SchemaJson& schema, std::string_view name) {
  if (!schema.is_object()) return nullptr;
  const auto found = schema.find(std::string(name));
  return found == schema.end() ? nullptr : &*found;
}

absl::Status CheckKeywords(const SchemaJson& schema, std::string_view path) {
  for (const auto& [name, value] : schema.items()) {
    const Keyword* const keyword = FindKeyword(name);
    if (keyword == nullptr) {
      if (name.starts_with("x-")) continue;  // an annotation of somebody's own
      return SchemaError(path, absl::StrCat("keyword \"", name.substr(0, 64), "\" is not supported"));
    }
    if (IsAssertion(name) && value.is_structured() && value.size() > kMaxMembers) {
      return SchemaError(path,
                         absl::StrCat("\"", name, "\" may have ", kMaxMembers, " members, not ", value.size(), ","));
    }
    if (const std::string_view form = MissingForm(value, keyword->form); !form.empty()) {
      return SchemaError(path, absl::StrCat("\"", name, "\" must be ", AbslSv(form)));
    }
  }
  const SchemaJson* const unique = FindMember(schema, "uniqueItems");
  if (unique != nullptr && unique->get<bool>()) return SchemaError(path, "keyword \"uniqueItems\" is not supported");
  return absl::OkStatus();
}

bool IsAssertion(std::string_view name) {
  const Keyword* const keyword = FindKeyword(name);
  return keyword != nullptr && keyword->is_assertion;
}

absl::StatusOr<unsigned> TypesOf(const SchemaJson& schema, std::string_view path) {
  unsigned types = 0;
  if (const SchemaJson* const type = FindMember(schema, "type"); type != nullptr) {
    if (!type->is_array()) return TypeNamed(*type, path);
    for (const SchemaJson& each : *type) {
      WINNOW_ASSIGN_OR_RETURN(const unsigned named, TypeNamed(each, path));
      types |= named;
    }
    return types;
  }
  for (const auto& [name, value] : schema.items()) {
    if (const Keyword* const keyword = FindKeyword(name); keyword != nullptr) types |= keyword->types;
  }
  return types == 0 ? unsigned{kAnyType} : types;
}

unsigned TypeOf(const SchemaJson& value) {
  if (value.is_null()) return kNullType;
  if (value.is_boolean()) return kBooleanType;
  if (value.is_string()) return kStringType;
  if (value.is_array()) return kArrayType;
  if (value.is_object()) return kObjectType;
  if (value.is_number_integer()) return kIntegerType;
  return std::floor(value.get<double>()) == value.get<double>() ? kIntegerType : kFractionType;
}

absl::StatusOr<std::optional<uint32_t>> CountOf(const SchemaJson& schema, std::string_view keyword,
                                                std::string_view path) {
  const SchemaJson* const value = FindMember(schema, keyword);
  if (value == nullptr) return std::optional<uint32_t>();
  if (!MissingForm(*value, Form::kCount).empty()) return SchemaError(path, absl::StrCat("\"", AbslSv(keyword), "\""));
  return static_cast<uint32_t>(value->get<double>());
}

std::set<std::string> RequiredOf(const SchemaJson& schema) {
  std::set<std::string> names;
  if (const SchemaJson* const required = FindMember(schema, "required"); required != nullptr) {
    for (const SchemaJson& name : *required) names.insert(name.get<std::string>());
  }
  return names;
}

}  // namespace winnow
