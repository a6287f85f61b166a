#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/config/parse_value.h"

// Addresses of processes as other machines see them.

namespace winnow {

// Only this machine reaches it: 127.0.0.0/8, ::1 and localhost.
bool IsLoopbackHost(std::string_view host);
// It stands for every address of a machine and is none that anybody could connect to: 0.0.0.0 and ::.
bool IsWildcardHost(std::string_view host);

// "host:port", or several of them separated by commas.
absl::StatusOr<std::vector<HostPort>> ParseHostPorts(std::string_view text);
std::string ToString(const std::vector<HostPort>& addresses);

// The numeric addresses of a name, IPv4 before IPv6 and each in ascending order, so that everybody who asks for them
// has the same order. A numeric host is its own only address. UNAVAILABLE when the name is not known, perhaps not yet.
absl::StatusOr<std::vector<HostPort>> ResolveHost(const HostPort& address);

// The host of this machine that connections to a numeric address come from. UNAVAILABLE when there is no route.
absl::StatusOr<std::string> LocalHostTowards(const HostPort& remote);

}  // namespace winnow
