#pragma once
#include <string>
#include <vector>

#include "common/base/status.h"

namespace winnow {

// Names of the UCX transports that work on this machine ("posix", "sysv", "cma", "tcp", "rc_verbs", ...), sorted.
absl::StatusOr<std::vector<std::string>> UcxTransports();

}  // namespace winnow
