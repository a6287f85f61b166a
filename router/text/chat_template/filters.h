#pragma once
#include <string_view>

#include "common/base/status.h"
#include "router/text/chat_template/value.h"

namespace winnow::chat_template {

// `input | name(arguments)`: Jinja's filters, with tojson as transformers defines it. An error for unknown names.
absl::StatusOr<Value> ApplyFilter(Heap* heap, std::string_view name, const Value& input, const Arguments& arguments);

}  // namespace winnow::chat_template
