#include "common/config/device_choice.h"

#include <charconv>

namespace winnow {
namespace {

constexpr int kMaxOrdinal = 63;

}  // namespace

absl::StatusOr<DeviceChoice> ParseDeviceChoice(std::string_view text) {
  const absl::Status bad = absl::InvalidArgumentError(absl::StrCat(
      "\"", AbslSv(text), "\" is not auto, cpu or cuda (auto:N and cuda:N name GPU N, 0 to ", kMaxOrdinal, ")"));
  const size_t colon = text.find(':');
  const std::string_view kind = text.substr(0, colon);
  DeviceChoice choice;
  if (kind == "cpu") {
    choice.kind = DeviceChoice::Kind::kCpu;
  } else if (kind == "cuda") {
    choice.kind = DeviceChoice::Kind::kCuda;
  } else if (kind != "auto") {
    return bad;
  }
  if (colon == std::string_view::npos) return choice;
  const std::string_view number = text.substr(colon + 1);
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), choice.ordinal);
  const bool whole = error == std::errc() && end == number.data() + number.size();
  if (!whole || choice.ordinal < 0 || choice.ordinal > kMaxOrdinal || kind == "cpu") return bad;
  return choice;
}

std::string ToString(const DeviceChoice& choice) {
  const char* kind = choice.kind == DeviceChoice::Kind::kCpu    ? "cpu"
                     : choice.kind == DeviceChoice::Kind::kCuda ? "cuda"
                                                                : "auto";
  return choice.ordinal == 0 ? kind : absl::StrCat(kind, ":", choice.ordinal);
}

}  // namespace winnow
