#pragma once
#include <string>

#include "common/base/status.h"

namespace winnow {

// Tries to listen on "host:port" for a moment and returns the address with a numeric host. Servers call it first
// because the libraries below them do not say why they cannot listen. ALREADY_EXISTS when the port is taken,
// INVALID_ARGUMENT when the text is no address or none of this machine; messages name the address.
absl::StatusOr<std::string> CheckListenAddress(const std::string& address);

}  // namespace winnow
