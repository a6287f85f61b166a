#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "router/keys/key_account.h"

namespace winnow {

// Who sends a request, as far as the router knows.
struct Caller {
  std::string tenant;  // whose cached prefixes it may share, and whose share of the ranks it takes
  double weight = 1;   // of the tenant
  std::shared_ptr<KeyAccount> account = nullptr;  // whose limits it is under; null: the router has no keys
};

// Whose credentials these are: the value of an Authorization header or of gRPC metadata of that name, empty where there
// is none. UNAUTHENTICATED says what is wrong with them. Any thread.
using Authenticator = std::function<absl::StatusOr<Caller>(std::string_view credentials)>;

}  // namespace winnow
