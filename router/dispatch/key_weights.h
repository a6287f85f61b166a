#pragma once
#include <map>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace winnow {

// The shares in which tenants are served while there is not enough for all, by API key.
class KeyWeights {
 public:
  // A line per key: its weight, above 0, and the key, as clients send it behind "Bearer ". Lines that begin with # and
  // empty ones are skipped. Errors name the line, never the key.
  static absl::StatusOr<KeyWeights> Parse(std::string_view text);
  static absl::StatusOr<KeyWeights> Load(const std::string& path);

  // Of TenantOf(credentials): 1 for those that are not in the file.
  double Of(const std::string& tenant) const;

 private:
  std::map<std::string, double> by_tenant_;
};

}  // namespace winnow
