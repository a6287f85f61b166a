#pragma once
#include <ctime>
#include <string_view>

#include "common/base/status.h"
#include "router/text/chat_template/value.h"

namespace winnow::chat_template {

// The functions that every template has: range, namespace, dict, raise_exception, strftime_now.
bool IsFunction(std::string_view name);
// `now` is what strftime_now shows, in local time. `name` IsFunction.
absl::StatusOr<Value> CallFunction(Heap* heap, std::time_t now, std::string_view name, const Arguments& arguments);

}  // namespace winnow::chat_template
