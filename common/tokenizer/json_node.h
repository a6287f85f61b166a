#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "common/base/json.h"
#include "common/base/status.h"

namespace winnow {

// Parses JSON whose nesting is at most `max_depth`; the error names the byte offset.
absl::StatusOr<nlohmann::json> ParseBoundedJson(std::string_view bytes, int max_depth);

// A value inside a JSON document together with its path ("model.merges[3]"), so that every complaint says where.
// Borrows the document.
class JsonNode {
 public:
  JsonNode(const nlohmann::json* value, std::string path) : value_(value), path_(std::move(path)) {}

  const nlohmann::json& value() const { return *value_; }
  const std::string& path() const { return path_; }

  // InvalidArgument "path: what".
  absl::Status Error(std::string_view what) const;
  // The same for a member of this object.
  absl::Status ErrorAt(std::string_view key, std::string_view what) const;

  // An object's member; present and not null.
  bool Has(std::string_view key) const;
  absl::StatusOr<JsonNode> Member(std::string_view key) const;

  absl::Status RequireArray() const;
  absl::Status RequireObject() const;
  // Of an array; index < value().size().
  JsonNode Element(size_t index) const;

  absl::StatusOr<std::string> AsString() const;
  absl::StatusOr<uint32_t> AsUint32() const;

  // Members of an object: required, or with the value to take when the member is absent or null.
  absl::StatusOr<std::string> String(std::string_view key) const;
  absl::StatusOr<std::string> StringOr(std::string_view key, std::string_view fallback) const;
  absl::StatusOr<bool> BoolOr(std::string_view key, bool fallback) const;
  absl::StatusOr<uint32_t> Uint32(std::string_view key) const;

 private:
  const nlohmann::json* value_;
  std::string path_;
};

}  // namespace winnow
