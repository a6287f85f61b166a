#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/config/parse_value.h"

namespace winnow {

// Where processes of a cluster find each other: "etcd://HOST:PORT[,HOST:PORT...][/PREFIX]", or etcds:// with TLS.
struct RegistryUrl {
  std::vector<HostPort> endpoints;  // members of one etcd cluster
  std::string prefix = "winnow";    // of all keys
  bool encrypted = false;

  // INVALID_ARGUMENT says which part is wrong.
  static absl::StatusOr<RegistryUrl> Parse(std::string_view text);
  std::string ToString() const;

  friend bool operator==(const RegistryUrl&, const RegistryUrl&) = default;
};

}  // namespace winnow
