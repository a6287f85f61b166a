#pragma once
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace winnow {

// Where an inference rank computes, as configured: "auto", "cpu", "cuda", and "auto:N" or "cuda:N" for GPU N of the
// machine instead of 0.
struct DeviceChoice {
  enum class Kind { kAuto, kCpu, kCuda };  // kAuto: the GPU if it answers and can, else the CPU
  Kind kind = Kind::kAuto;
  int ordinal = 0;

  bool operator==(const DeviceChoice&) const = default;
};

// INVALID_ARGUMENT says what is allowed.
absl::StatusOr<DeviceChoice> ParseDeviceChoice(std::string_view text);
std::string ToString(const DeviceChoice& choice);

}  // namespace winnow
