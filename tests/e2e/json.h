#pragma once
#include <nlohmann/json.hpp>

namespace winnow::e2e {

using Json = nlohmann::json;

}  // namespace winnow::e2e
