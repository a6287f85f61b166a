#pragma once
#include <string>
#include <vector>

#include "common/base/status.h"
#include "router/keys/api_key.h"

namespace winnow {

// The keys that a router knows, as a file (YAML): a list `keys` of maps of ApiKey's fields. No secret can be had from
// it.
struct KeyFile {
  std::vector<ApiKey> keys;

  // INVALID_ARGUMENT names line and field: fields that are unknown or missing, names or ids that come twice, keys of
  // one tenant with different weights.
  static absl::StatusOr<KeyFile> Parse(const std::string& yaml);
  // Errors begin with the path.
  static absl::StatusOr<KeyFile> Load(const std::string& path);

  std::string Format() const;
  // Replaces the file in one step, for its owner alone to read.
  absl::Status Save(const std::string& path) const;
};

}  // namespace winnow
