#pragma once

#include "common/base/json.h"

namespace winnow::e2e {

using Json = nlohmann::json;

}  // namespace winnow::e2e
