#pragma once
#include <nlohmann/json.hpp>
#include <string_view>

#include "common/base/status.h"

namespace winnow {

// Objects are sorted by key: the order-keeping variant looks keys up one by one, so a body of a million keys would
// occupy it for hours.
using Json = nlohmann::json;

inline constexpr int kMaxJsonDepth = 64;

// Parses a request body, which must be one JSON object. INVALID_ARGUMENT says where the text stops being JSON, that it
// nests deeper than kMaxJsonDepth, holds invalid UTF-8 or a number beyond the range of double.
absl::StatusOr<Json> ParseJsonObject(std::string_view text);

}  // namespace winnow
