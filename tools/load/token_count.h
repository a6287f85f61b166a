#pragma once
#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"

namespace winnow {

// A number of tokens on a command line: "100", "32k" for 32768, "1m" for 1048576; at least 1, at most 2^24.
absl::StatusOr<uint32_t> ParseTokenCount(std::string_view text);

}  // namespace winnow
