#pragma once
#include <chrono>
#include <cstdint>

#include "cmd/chaos/sandbox/network_namespace.h"
#include "common/config/parse_value.h"

namespace winnow::chaos {

// Whether a TCP connection from there to an address is accepted within the limit.
bool Connects(const NetworkNamespace& from, const HostPort& to, std::chrono::milliseconds limit);

// Bits a second of so many bytes over a TCP connection from one host to another, whose address is `address`;
// UNAVAILABLE when they are not there within the limit.
absl::StatusOr<double> MeasureRate(const NetworkNamespace& from, const NetworkNamespace& to, const std::string& address,
                                   int64_t bytes, std::chrono::milliseconds limit);

}  // namespace winnow::chaos
