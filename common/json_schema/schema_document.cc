#include "common/json_schema/schema_document.h"

#include <algorithm>
#include <utility>

namespace winnow {
namespace {

constexpr size_t kMaxAlternatives = 256;

SchemaJson AllOf(const SchemaJson& a, const SchemaJson& b) {
  return SchemaJson{{"allOf", SchemaJson::array({a, b})}};
}

// Of the values in both, in the order of the first.
SchemaJson Intersection(const SchemaJson& a, const SchemaJson& b) {
  SchemaJson both = SchemaJson::array();
  for (const SchemaJson& value : a) {
    if (std::find(b.begin(), b.end(), value) != b.end()) both.push_back(value);
  }
  return both;
}

SchemaJson AsList(const SchemaJson& value) {
  return value.is_array() ? value : SchemaJson::array({value});
}

size_t CountValues(const SchemaJson& value) {
  size_t count = 1;
  if (value.is_structured()) {
    for (const SchemaJson& each : value) count += CountValues(each);
  }
  return count;
}

// A name that one of two schemas has no property for goes by that schema's additional properties.
void AddForOthers(const SchemaJson& from, const SchemaJson& to, SchemaJson& properties) {
  const SchemaJson* const names = FindMember(from, "properties");
  const SchemaJson* const additional = FindMember(to, "additionalProperties");
  const SchemaJson* const known = FindMember(to, "properties");
  if (names == nullptr || additional == nullptr) return;
  for (const auto& [name, schema] : names->items()) {
    if (known == nullptr || !known->contains(name)) properties[name] = AllOf(schema, *additional);
  }
}

}  // namespace

absl::StatusOr<const SchemaJson*> SchemaDocument::Resolve(const std::string& ref, std::string_view path) const {
  if (ref.empty() || ref[0] != '#') {
    return SchemaError(
        path, absl::StrCat("\"$ref\" to \"", ref.substr(0, 64), "\", outside of the schema, is not supported"));
  }
  const SchemaJson* target = nullptr;
  try {
    const nlohmann::json_pointer<std::string> pointer(ref.substr(1));
    if (root_.contains(pointer)) target = &root_.at(pointer);
  } catch (const nlohmann::json::exception&) {
    target = nullptr;
  }
  if (target == nullptr || (!target->is_object() && !target->is_boolean())) {
    return SchemaError(path, absl::StrCat("\"$ref\" to \"", ref.substr(0, 64), "\", where there is no schema"));
  }
  return target;
}

absl::StatusOr<const SchemaJson*> SchemaDocument::Keep(SchemaJson schema, std::string_view path) {
  num_made_values_ += CountValues(schema);
  if (made_.size() >= kMaxMade || num_made_values_ > kMaxMadeValues) {
    return SchemaError(path, "the schema combines too many others");
  }
  made_.push_back(std::move(schema));
  return &made_.back();
}

absl::StatusOr<const SchemaJson*> SchemaDocument::Both(const SchemaJson& a, const SchemaJson& b,
                                                       std::string_view path) {
  if (a.is_boolean()) return Keep(a.get<bool>() ? b : a, path);
  if (b.is_boolean()) return Keep(b.get<bool>() ? a : b, path);
  SchemaJson merged = a;
  WINNOW_RETURN_IF_ERROR(MergeInto(merged, b, path));
  return Keep(std::move(merged), path);
}

absl::Status SchemaDocument::MergeInto(SchemaJson& merged, const SchemaJson& other, std::string_view path) {
  SchemaJson properties = SchemaJson::object();
  AddForOthers(merged, other, properties);
  AddForOthers(other, merged, properties);
  for (const auto& [name, value] : other.items()) {
    if (!IsAssertion(name) && name != "$defs" && name != "definitions") continue;
    if (!merged.contains(name)) {
      merged[name] = value;
    } else if (merged[name] != value) {
      WINNOW_RETURN_IF_ERROR(MergeKeyword(merged, name, value, path));
    }
  }
  for (const auto& [name, schema] : properties.items()) merged["properties"][name] = schema;
  return absl::OkStatus();
}

absl::Status SchemaDocument::MergeKeyword(SchemaJson& merged, const std::string& name, const SchemaJson& value,
                                          std::string_view path) {
  SchemaJson& mine = merged[name];
  const auto take_larger = [&] { mine = std::max(mine.get<double>(), value.get<double>()); };
  const auto take_smaller = [&] { mine = std::min(mine.get<double>(), value.get<double>()); };
  if (name == "properties") {
    for (const auto& [property, schema] : value.items()) {
      mine[property] = mine.contains(property) && mine[property] != schema ? AllOf(mine[property], schema) : schema;
    }
  } else if (name == "required") {
    for (const SchemaJson& property : value) {
      if (std::find(mine.begin(), mine.end(), property) == mine.end()) mine.push_back(property);
    }
  } else if (name == "additionalProperties" || name == "items") {
    mine = mine == false || value == false ? SchemaJson(false) : AllOf(mine, value);
  } else if (name == "minLength" || name == "minItems" || name == "minimum" || name == "exclusiveMinimum") {
    take_larger();
  } else if (name == "maxLength" || name == "maxItems" || name == "maximum" || name == "exclusiveMaximum") {
    take_smaller();
  } else if (name == "uniqueItems") {
    mine = true;
  } else if (name == "enum") {
    mine = Intersection(mine, value);
    if (mine.empty()) return SchemaError(path, "values of \"enum\" that no schema of several allows");
  } else if (name == "type") {
    // Numbers include integers.
    SchemaJson types = Intersection(AsList(mine), AsList(value));
    const auto has = [](const SchemaJson& list, std::string_view type) {
      return std::find(list.begin(), list.end(), SchemaJson(type)) != list.end();
    };
    const SchemaJson a = AsList(mine), b = AsList(value);
    if (!has(types, "integer") &&
        ((has(a, "integer") && has(b, "number")) || (has(a, "number") && has(b, "integer")))) {
      types.push_back("integer");
    }
    if (types.empty()) return SchemaError(path, "types that no value has");
    mine = types;
  } else if (name == "allOf") {
    mine.insert(mine.end(), value.begin(), value.end());
  } else if (name == "anyOf") {
    if (mine.size() * value.size() > kMaxAlternatives) return SchemaError(path, "too many combinations of \"anyOf\"");
    SchemaJson combined = SchemaJson::array();
    for (const SchemaJson& a : mine) {
      for (const SchemaJson& b : value) combined.push_back(AllOf(a, b));
    }
    mine = std::move(combined);
  } else if (name == "$ref") {
    SchemaJson& all = merged["allOf"];
    if (all.is_null()) all = SchemaJson::array();
    all.push_back({{"$ref", value}});
  } else {
    return SchemaError(path, absl::StrCat("two different values of \"", name, "\" for the same value"));
  }
  return absl::OkStatus();
}

}  // namespace winnow
