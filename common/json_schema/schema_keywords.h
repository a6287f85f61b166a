#pragma once
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "common/base/json.h"
#include "common/base/status.h"

namespace winnow {

using SchemaJson = nlohmann::ordered_json;

// What a keyword says about: a bit each.
enum SchemaType : unsigned {
  kNullType = 1,
  kBooleanType = 2,
  kIntegerType = 4,
  kFractionType = 8,  // numbers that are not whole
  kNumberType = kIntegerType | kFractionType,
  kStringType = 16,
  kArrayType = 32,
  kObjectType = 64,
  kAnyType = 127,
};

// `#/properties/a` and a member of it.
std::string SchemaPath(std::string_view path, std::string_view member);

// INVALID_ARGUMENT that begins with what is wrong and ends with where.
absl::Status SchemaError(std::string_view path, std::string_view what);

// Every keyword of a schema is served, one that says nothing about which values are valid, or an error that names it:
// none is passed over in silence. Also the types of the values of those that are served.
absl::Status CheckKeywords(const SchemaJson& schema, std::string_view path);

// A keyword that restricts values.
bool IsAssertion(std::string_view keyword);

// The types that a schema's own keywords leave: those of `type`; where there is none, those that other keywords are
// about; where there are none either, all.
absl::StatusOr<unsigned> TypesOf(const SchemaJson& schema, std::string_view path);
unsigned TypeOf(const SchemaJson& value);

// Members, null where there are none.
const SchemaJson* FindMember(const SchemaJson& schema, std::string_view name);
absl::StatusOr<std::optional<uint32_t>> CountOf(const SchemaJson& schema, std::string_view keyword,
                                                std::string_view path);
std::set<std::string> RequiredOf(const SchemaJson& schema);

}  // namespace winnow
