#pragma once
#include <string_view>

#include "common/base/status.h"
#include "router/text/chat_template/value.h"

namespace winnow::chat_template {

// `value is name(arguments)`: Jinja's tests. An error for unknown names.
absl::StatusOr<bool> ApplyTest(Heap* heap, std::string_view name, const Value& value, const Arguments& arguments);

}  // namespace winnow::chat_template
