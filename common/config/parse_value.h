#pragma once
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/status.h"

// Texts of option values. Every function answers INVALID_ARGUMENT with a message that says what was expected.

namespace winnow {

// "host:port"; an IPv6 host stands in brackets. Port 0 lets the system choose.
struct HostPort {
  std::string host;
  uint16_t port = 0;

  std::string ToString() const;
  friend bool operator==(const HostPort&, const HostPort&) = default;
};

absl::StatusOr<bool> ParseBool(std::string_view text);                           // true, false, yes, no, on, off, 1, 0
absl::StatusOr<int64_t> ParseInt(std::string_view text);                         // decimal
absl::StatusOr<double> ParseNumber(std::string_view text);                       // finite
absl::StatusOr<int64_t> ParseBytes(std::string_view text);                       // "123", "64KiB", "1.5GiB", "2GB"
absl::StatusOr<std::chrono::microseconds> ParseDuration(std::string_view text);  // "250us", "500ms", "2s", "1.5m", "1h"
absl::StatusOr<HostPort> ParseHostPort(std::string_view text);

// The shortest text that the matching parser reads back as the same value.
std::string FormatBytes(int64_t bytes);
std::string FormatDuration(std::chrono::microseconds duration);

}  // namespace winnow
