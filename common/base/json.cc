#include "common/base/json.h"

WINNOW_JSON_COMPILED_ONCE(, nlohmann::json)
WINNOW_JSON_COMPILED_ONCE(, nlohmann::ordered_json)

namespace winnow {

nlohmann::json ParseJson(std::string_view text) {
  return nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
}

}  // namespace winnow
