#pragma once
#include <algorithm>
#include <chrono>
#include <optional>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "common/base/status.h"

namespace winnow {

inline constexpr char kRetryAfterPayload[] = "winnow/retry-after-s";

// RESOURCE_EXHAUSTED that will be over after `wait`, which the message and, over HTTP, Retry-After say in whole
// seconds.
inline absl::Status ExhaustedFor(std::chrono::milliseconds wait, std::string_view message) {
  const auto seconds = std::max<int64_t>(1, std::chrono::ceil<std::chrono::seconds>(wait).count());
  absl::Status status = absl::ResourceExhaustedError(absl::StrCat(AbslSv(message), "; try again in ", seconds, " s"));
  status.SetPayload(kRetryAfterPayload, absl::Cord(absl::StrCat(seconds)));
  return status;
}

// Seconds; absent where the error does not say.
inline std::optional<int64_t> RetryAfter(const absl::Status& status) {
  int64_t seconds = 0;
  const auto payload = status.GetPayload(kRetryAfterPayload);
  if (!payload || !absl::SimpleAtoi(std::string(*payload), &seconds)) return std::nullopt;
  return seconds;
}

}  // namespace winnow
