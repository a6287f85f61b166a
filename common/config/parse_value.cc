#include "common/config/parse_value.h"

#include <array>
#include <charconv>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"

namespace winnow {
namespace {

struct Unit {
  std::string_view suffix;
  double factor;
};

constexpr std::array<Unit, 11> kByteUnits = {{{"", 1},
                                              {"B", 1},
                                              {"KiB", 1024.0},
                                              {"MiB", 1048576.0},
                                              {"GiB", 1073741824.0},
                                              {"TiB", 1099511627776.0},
                                              {"kB", 1e3},
                                              {"KB", 1e3},
                                              {"MB", 1e6},
                                              {"GB", 1e9},
                                              {"TB", 1e12}}};
constexpr std::array<Unit, 5> kTimeUnits = {{{"us", 1}, {"ms", 1e3}, {"s", 1e6}, {"m", 6e7}, {"h", 3.6e9}}};

absl::Status Expected(std::string_view what, std::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat("expected ", AbslSv(what), ", got \"", AbslSv(text), "\""));
}

// "<number><unit>" in units of factor 1, rounded to the nearest integer.
template <size_t N>
absl::StatusOr<int64_t> ParseWithUnit(std::string_view text, const std::array<Unit, N>& units, std::string_view what) {
  size_t digits = 0;
  while (digits < text.size() && (absl::ascii_isdigit(text[digits]) || text[digits] == '.')) ++digits;
  double number = 0;
  if (digits == 0 || !absl::SimpleAtod(AbslSv(text.substr(0, digits)), &number)) return Expected(what, text);
  std::string_view suffix = text.substr(digits);
  if (!suffix.empty() && suffix.front() == ' ') suffix.remove_prefix(1);
  for (const Unit& unit : units) {
    if (unit.suffix != suffix) continue;
    const double value = std::round(number * unit.factor);
    if (value >= 9.2e18) return Expected(what, text);
    return static_cast<int64_t>(value);
  }
  return Expected(what, text);
}

}  // namespace

std::string HostPort::ToString() const {
  const bool ipv6 = host.find(':') != std::string::npos;
  return absl::StrCat(ipv6 ? "[" : "", host, ipv6 ? "]" : "", ":", port);
}

absl::StatusOr<bool> ParseBool(std::string_view text) {
  const std::string lower = absl::AsciiStrToLower(AbslSv(text));
  if (lower == "true" || lower == "yes" || lower == "on" || lower == "1") return true;
  if (lower == "false" || lower == "no" || lower == "off" || lower == "0") return false;
  return Expected("true or false", text);
}

absl::StatusOr<int64_t> ParseInt(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return Expected("a whole number", text);
  return value;
}

absl::StatusOr<double> ParseNumber(std::string_view text) {
  double value = 0;
  if (!absl::SimpleAtod(AbslSv(text), &value) || !std::isfinite(value)) return Expected("a number", text);
  return value;
}

absl::StatusOr<int64_t> ParseBytes(std::string_view text) {
  return ParseWithUnit(text, kByteUnits, "a size of 0 or more, such as 512MiB or 2GiB");
}

absl::StatusOr<std::chrono::microseconds> ParseDuration(std::string_view text) {
  if (text == "0") return std::chrono::microseconds(0);
  absl::StatusOr<int64_t> value = ParseWithUnit(text, kTimeUnits, "a duration of 0 or more, such as 500ms or 2s");
  if (!value.ok()) return value.status();
  return std::chrono::microseconds(*value);
}

absl::StatusOr<HostPort> ParseHostPort(std::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return Expected("HOST:PORT", text);
  std::string_view host = text.substr(0, colon);
  if (host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return Expected("HOST:PORT (an IPv6 address in brackets)", text);
  }
  const absl::StatusOr<int64_t> port = ParseInt(text.substr(colon + 1));
  if (!port.ok() || *port < 0 || *port > 65535) return Expected("HOST:PORT with a port from 0 to 65535", text);
  if (host.empty()) return Expected("HOST:PORT", text);
  return HostPort{std::string(host), static_cast<uint16_t>(*port)};
}

std::string FormatBytes(int64_t bytes) {
  for (const auto& [suffix, factor] : {Unit{"GiB", 1073741824.0}, Unit{"MiB", 1048576.0}, Unit{"KiB", 1024.0}}) {
    const auto unit = static_cast<int64_t>(factor);
    if (bytes >= unit && bytes % unit == 0) return absl::StrCat(bytes / unit, AbslSv(suffix));
  }
  return absl::StrCat(bytes);
}

std::string FormatDuration(std::chrono::microseconds duration) {
  const int64_t us = duration.count();
  if (us == 0) return "0";
  if (us % 1'000'000 == 0) return absl::StrCat(us / 1'000'000, "s");
  if (us % 1'000 == 0) return absl::StrCat(us / 1'000, "ms");
  return absl::StrCat(us, "us");
}

}  // namespace winnow
