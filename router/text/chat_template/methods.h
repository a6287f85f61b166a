#pragma once
#include <string_view>

#include "common/base/status.h"
#include "router/text/chat_template/value.h"

namespace winnow::chat_template {

// Does a string, list or dict have this method?
bool HasMethod(const Value& object, std::string_view name);

// object.name(arguments), for methods that HasMethod knows.
absl::StatusOr<Value> CallMethod(Heap* heap, const Value& object, std::string_view name, const Arguments& arguments);

}  // namespace winnow::chat_template
