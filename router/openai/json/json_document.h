#pragma once
#include <string_view>

#include "common/base/json.h"
#include "common/base/status.h"

namespace winnow {

// Objects keep the order of their members, which chat templates show. A member is looked up one by one.
using Json = nlohmann::ordered_json;

inline constexpr int kMaxJsonDepth = 64;
inline constexpr size_t kMaxBodyFields = 1024;

// Parses a request body, which must be one JSON object. INVALID_ARGUMENT says where the text stops being JSON, that it
// nests deeper than kMaxJsonDepth, has more than kMaxBodyFields fields, holds invalid UTF-8 or a number beyond the
// range of double.
absl::StatusOr<Json> ParseJsonObject(std::string_view text);

}  // namespace winnow
