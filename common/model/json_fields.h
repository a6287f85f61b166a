#pragma once
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/base/json.h"

namespace winnow {

// Parses a JSON object. Errors begin with `file` and give the position; nesting deeper than kMaxJsonDepth is refused.
inline constexpr int kMaxJsonDepth = 64;
absl::StatusOr<nlohmann::json> ParseJsonObject(std::string_view text, std::string_view file);

// Typed reads of an object's fields. A missing field and null are both nullopt; a value of another type or outside the
// range is INVALID_ARGUMENT naming file, field and what was found. Borrows the object.
class JsonFields {
 public:
  // `prefix` goes before field names in errors, e.g. "rope_scaling.".
  JsonFields(const nlohmann::json& object, std::string_view file, std::string_view prefix = "")
      : object_(object), file_(file), prefix_(prefix) {}

  const nlohmann::json& object() const { return object_; }
  // The fields of an object inside this one; errors name them `<name>.<field>`.
  JsonFields Nested(const nlohmann::json& object, std::string_view name) const;
  bool Has(const char* field) const;     // present and not null
  bool IsNull(const char* field) const;  // present and null
  absl::StatusOr<std::optional<int64_t>> Int(const char* field, int64_t low, int64_t high) const;
  absl::StatusOr<std::optional<double>> Number(const char* field) const;  // finite; integers are accepted
  absl::StatusOr<std::optional<bool>> Bool(const char* field) const;
  absl::StatusOr<std::optional<std::string>> String(const char* field) const;
  absl::StatusOr<const nlohmann::json*> Object(const char* field) const;  // null when missing or null
  absl::StatusOr<const nlohmann::json*> Array(const char* field) const;   // null when missing or null

  // A field's name with those of the objects that it lies in.
  std::string Path(std::string_view field) const { return prefix_ + std::string(field); }
  // INVALID_ARGUMENT "<file>: <prefix><field> <message>".
  absl::Status Error(std::string_view field, std::string_view message) const;

 private:
  const nlohmann::json* FindValue(const char* field) const;  // null when missing or null

  const nlohmann::json& object_;
  std::string file_;
  std::string prefix_;
};

}  // namespace winnow
