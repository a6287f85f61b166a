#pragma once
#include <deque>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/json_schema/schema_keywords.h"

namespace winnow {

// A schema with what its parts refer to, and parts that are made of several.
class SchemaDocument {
 public:
  // Schemas that are made of others, at most: alternatives within alternatives multiply.
  static constexpr size_t kMaxMade = 10'000;
  static constexpr size_t kMaxMadeValues = 500'000;  // JSON values within them

  // `root` must outlive this.
  explicit SchemaDocument(const SchemaJson& root) : root_(root) {}

  const SchemaJson& root() const { return root_; }

  // What "$ref" names: "#" or "#/..." within the document. `path` is where it stands.
  absl::StatusOr<const SchemaJson*> Resolve(const std::string& ref, std::string_view path) const;

  // The schema of the values that are valid under both. What cannot be said in one schema is an error that names the
  // keyword. The result lives as long as this.
  absl::StatusOr<const SchemaJson*> Both(const SchemaJson& a, const SchemaJson& b, std::string_view path);
  // Keeps a schema that was made.
  absl::StatusOr<const SchemaJson*> Keep(SchemaJson schema, std::string_view path);

 private:
  absl::Status MergeInto(SchemaJson& merged, const SchemaJson& other, std::string_view path);
  absl::Status MergeKeyword(SchemaJson& merged, const std::string& name, const SchemaJson& value,
                            std::string_view path);

  const SchemaJson& root_;
  std::deque<SchemaJson> made_;
  size_t num_made_values_ = 0;
};

}  // namespace winnow
