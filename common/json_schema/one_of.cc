#include "common/json_schema/one_of.h"

#include <algorithm>
#include <optional>
#include <string>

namespace winnow {
namespace {

// The values that a schema lists; nullopt where it lists none.
std::optional<SchemaJson> ValuesOf(const SchemaJson& schema) {
  if (const SchemaJson* const constant = FindMember(schema, "const")) return SchemaJson::array({*constant});
  if (const SchemaJson* const values = FindMember(schema, "enum")) return *values;
  return std::nullopt;
}

bool ListDifferentValues(const SchemaJson& a, const SchemaJson& b) {
  const std::optional<SchemaJson> of_a = ValuesOf(a), of_b = ValuesOf(b);
  if (!of_a.has_value() || !of_b.has_value()) return false;
  return std::none_of(of_a->begin(), of_a->end(), [&](const SchemaJson& value) {
    return std::find(of_b->begin(), of_b->end(), value) != of_b->end();
  });
}

const SchemaJson& Target(const SchemaDocument& document, const SchemaJson& schema) {
  const SchemaJson* const ref = FindMember(schema, "$ref");
  if (ref == nullptr || !ref->is_string()) return schema;
  const absl::StatusOr<const SchemaJson*> target = document.Resolve(ref->get<std::string>(), "");
  return target.ok() ? **target : schema;
}

bool RequireDifferentProperty(const SchemaDocument& document, const SchemaJson& a, const SchemaJson& b) {
  const SchemaJson* const of_a = FindMember(a, "properties");
  const SchemaJson* const of_b = FindMember(b, "properties");
  if (of_a == nullptr || of_b == nullptr) return false;
  const std::set<std::string> required_b = RequiredOf(b);
  for (const std::string& name : RequiredOf(a)) {
    if (!required_b.contains(name) || !of_a->contains(name) || !of_b->contains(name)) continue;
    if (ListDifferentValues(Target(document, (*of_a)[name]), Target(document, (*of_b)[name]))) return true;
  }
  return false;
}

absl::StatusOr<unsigned> TypesOfValues(const SchemaJson& schema, std::string_view path) {
  if (!schema.is_object()) return schema == false ? 0u : unsigned{kAnyType};
  WINNOW_RETURN_IF_ERROR(CheckKeywords(schema, path));
  if (const std::optional<SchemaJson> values = ValuesOf(schema)) {
    unsigned types = 0;
    for (const SchemaJson& value : *values) types |= TypeOf(value);
    return types;
  }
  return TypesOf(schema, path);
}

}  // namespace

absl::Status CheckOneOf(const SchemaDocument& document, const std::vector<const SchemaJson*>& schemas,
                        std::string_view path) {
  constexpr size_t kMaxSchemas = 256;
  if (schemas.size() > kMaxSchemas) return SchemaError(path, "too many schemas");
  for (size_t i = 0; i < schemas.size(); ++i) {
    WINNOW_ASSIGN_OR_RETURN(const unsigned types, TypesOfValues(*schemas[i], SchemaPath(path, std::to_string(i))));
    for (size_t j = 0; j < i; ++j) {
      WINNOW_ASSIGN_OR_RETURN(const unsigned others, TypesOfValues(*schemas[j], SchemaPath(path, std::to_string(j))));
      const bool apart =
          (types & others) == 0 || ListDifferentValues(*schemas[i], *schemas[j]) ||
          ((types & others) == kObjectType && RequireDifferentProperty(document, *schemas[i], *schemas[j]));
      if (apart) continue;
      return SchemaError(path, absl::StrCat("keyword \"oneOf\" with schemas ", j, " and ", i,
                                            " that may have values in common is not supported (\"anyOf\" is)"));
    }
  }
  return absl::OkStatus();
}

}  // namespace winnow
