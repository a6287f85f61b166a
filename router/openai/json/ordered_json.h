#pragma once
#include <string_view>

#include "common/base/json.h"
#include "common/base/status.h"

namespace winnow {

// Parses JSON into objects that keep the order of their members, which templates show. Of members with the same name
// the last value counts, in the place of the first. Linear in the text's size: the library's own parser looks every
// name up one by one, so an object of a million members would occupy it for hours. Destroying a document recurses:
// check the depth first. INVALID_ARGUMENT says where the text stops being JSON.
absl::StatusOr<nlohmann::ordered_json> ParseOrderedJson(std::string_view text);

}  // namespace winnow
